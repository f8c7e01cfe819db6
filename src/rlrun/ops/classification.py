"""How well scores of classes fit labels, and clusters the true ones."""

import torch.nn.functional as F
from torch import Tensor


def accuracy(output: Tensor, label: Tensor) -> Tensor:
    """Return 1 for each row whose largest score is that of its label, else 0: scores [B, K], labels [B] -> [B]."""
    return (output.argmax(-1) == label).float()


def log_likelihood(output: Tensor, label: Tensor) -> Tensor:
    """Return the log-probability of each label under the softmax of the scores: [B, K], [B] -> [B]."""
    return output.log_softmax(-1).gather(-1, label.long().unsqueeze(-1)).squeeze(-1)


def auroc(score: Tensor, positive: Tensor) -> Tensor:
    """Return the probability that a positive row has a higher score than a negative one; equal scores count half.

    This is the area under the curve of true over false positives (Mann and Whitney 1947, doi 10.1214/aoms/1177730491).
    NaN if positive or negative rows are missing.

    Args:
        score: [N].
        positive: [N], true or 1 for positive rows.
    """
    positive = positive.bool()
    _, place, counts = score.double().unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    rank = (counts.cumsum(0) - 0.5 * (counts - 1.0))[place]  # from 1; equal scores share their mean rank
    positives = positive.sum()
    wins: Tensor = rank[positive].sum() - 0.5 * positives * (positives + 1)
    return wins / (positives * (~positive).sum())


def adjusted_rand_index(cluster: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Return how far clusters of items agree with the true ones, float64 [B]: 1 if they are the same, 0 by chance.

    It counts pairs of items on which both agree (together or apart), relative to the expectation (Hubert and Arabie
    1985, doi 10.1007/BF01908075).

    Args:
        cluster, truth: of each item, whole numbers from 0, [B, N].
        counted: flags of the items that count, [B, N].
    """
    counts = F.one_hot(cluster.long()).mT.double() @ (F.one_hot(truth.long()) * counted.unsqueeze(-1)).double()

    def pairs(sizes: Tensor) -> Tensor:
        return 0.5 * (sizes * (sizes - 1.0)).flatten(1).sum(-1)

    together, of_cluster, of_truth = pairs(counts), pairs(counts.sum(2)), pairs(counts.sum(1))
    expected = of_cluster * of_truth / pairs(counts.sum((1, 2)).unsqueeze(-1)).clamp(min=1.0)
    largest = 0.5 * (of_cluster + of_truth)
    return ((together - expected) / (largest - expected)).where(largest > expected, 1.0)
