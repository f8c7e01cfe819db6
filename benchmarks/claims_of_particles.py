"""Claims about particles: densities that are known, posteriors, data from elsewhere. And about objects of images."""

from __future__ import annotations

from pathlib import Path

from benchmarks.claims import ACCURACY, Claim, answer
from benchmarks.latents import held_out, judged

FALLING = ("+with=anneal", "callbacks.learning_rate.value.steps=${stop.updates}")
OWN_FALLS = (  # that of the critic stays
    "+callbacks.particles.schedule={_target_: rlrun.core.schedules.Linear, first: 0.01, last: 0.0, steps: 1_000}"
)
COVARIANCE = "error of the covariance, as a share of its Frobenius norm"
ERRORS = "errors of the posterior's mean over 1 % and covariance over 5 %, the larger"
AREA = "area under the curve of entropy against inverted digits and against noise, the smaller"
WIDE = ("algorithm.width=4", *FALLING)
GPVI = (
    *("algorithm=generator", "algorithm.method=gpvi", "algorithm.hidden=[]", "algorithm.lr=1.0e-2"),
    *("algorithm.particles=50", "stop.updates=1_500", *FALLING),
)
REGRESSION = (
    *("algorithm=functional_particles", "data=file", "algorithm.loss=regression", "algorithm.prior=null"),
    *("algorithm.network.hidden=[]", "algorithm.network.output_bias=false", "algorithm.particles=100"),
    *("algorithm.batch_size=80", "algorithm.lr=0.02", "algorithm.width=4", "evaluation.every=0", "stop.updates=2_000"),
)
MONET = ("algorithm=monet", "encoder=small", "encoder.images.strides=[2,2]", *FALLING)
HYPERNETWORK = ("algorithm=hypernetwork", "encoder=flat", "algorithm.entropy_weight=30", "stop.updates=2_000")


def uncertain(overrides: list[str], folder: Path) -> float:
    """Return the smaller area under the curve of the best checkpoint's uncertainty, of inverted rows and noise."""
    metrics = judged(overrides, folder)
    return min(metrics["outliers"], metrics["outliers_noise"])


CLAIMS = {
    **{
        f"particles-gaussian-{method}": Claim(
            ("algorithm=particles", f"algorithm.method={method}", *options),
            0.05,
            unit=COVARIANCE,
            measured=answer("covariance_error"),
            at_most=True,
        )
        for method, options in {**dict.fromkeys(("svgd", "gfsf"), WIDE), "minmax": (OWN_FALLS,)}.items()
    },
    "particles-gaussian-gpvi": Claim(GPVI, 0.05, unit=COVARIANCE, measured=answer("covariance_error"), at_most=True),
    **{
        f"particles-regression-{method}": Claim(
            (*REGRESSION, f"algorithm.method={method}", *FALLING),
            1.0,
            unit=ERRORS,
            measured=answer("posterior_error"),
            at_most=True,
        )
        for method in ("svgd", "gfsf")
    },
    "monet-sprites": Claim(
        MONET, 0.9, unit="adjusted Rand index of held-out sprites' pixels", measured=held_out("ari"), enough=4
    ),
    "hypernetwork-digits": Claim(HYPERNETWORK, 0.96, unit=ACCURACY, measured=held_out("accuracy")),
    "hypernetwork-digits-outliers": Claim(HYPERNETWORK, 0.9, unit=AREA, measured=uncertain),
}
