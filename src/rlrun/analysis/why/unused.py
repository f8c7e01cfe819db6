"""Rules about what a representation of data leaves unused: latents, codes and slots."""

from rlrun.analysis.why.causes import Cause, override, rule, shown
from rlrun.analysis.why.facts import Facts

LEAST, UNUSED = 0.1, 0.5  # nats that latents carry about an observation; share of codes
ALONE = 1.5  # slots


@rule(
    "posterior collapsed",
    f"latents carry less than {LEAST:g} nats about an observation",
    "`algorithm.beta=…`, `algorithm.target_divergence=…`",
    reads="vae/divergence",
)
def posterior(facts: Facts) -> Cause | None:
    divergence = facts.late("vae/divergence")
    if divergence >= LEAST:
        return None
    beta = facts.figure("networks.beta.initial")
    smaller = "" if beta is None else f"a smaller weight of the divergence: {override(beta.key, beta.value / 10)}, or "
    reason = f"the latents of an observation are {shown(divergence)} nats from the prior: the decoder ignores them"
    return reason, {"divergence": divergence}, f"{smaller}a target of it: algorithm.target_divergence=0.5"


@rule(
    "dead codes",
    f"{UNUSED:.0%} of a codebook's codes stand for hardly any row",
    "`algorithm.revive=…`, `algorithm.codes=…`",
    reads="vq_vae/dead_codes",
)
def dead_codes(facts: Facts) -> Cause | None:
    share = facts.late("vq_vae/dead_codes")
    if share < UNUSED:
        return None
    codes, revived = facts.figure("networks.vq_vae.codes"), facts.number("callbacks.vq_vae.revive")
    remedy = "codes that move to where rows are: algorithm.ema=0.99 algorithm.revive=0.1"
    if revived and codes is not None:
        remedy = f"fewer codes: {override(codes.key, codes.value // 2)}"
    return f"{share:.0%} of the codes stand for hardly any row", {"dead_codes": share}, remedy


@rule(
    "one slot takes everything",
    "the other slots of a MONet have hardly any pixel",
    "`algorithm.latent=…`",
    reads="monet/slots",
)
def slots(facts: Facts) -> Cause | None:
    count = facts.late("monet/slots")
    if count >= ALONE:
        return None
    latent = facts.figure("networks.monet.latent")
    fewer = "" if latent is None else f": {override(latent.key, max(1, latent.value // 2))}"
    return "one slot shows whole images, so nothing is divided", {"slots": count}, f"fewer latents of a slot{fewer}"
