"""Functions of `metrics.functional` of releases 0.8 to 1.4, by torch and torchmetrics.

Where releases give an argument by position different meanings, its type tells them apart, or it has to be named.
Classes that are neither predicted nor there count as 0 in a mean over classes, as in all of these releases; in
torchmetrics they are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torchmetrics.functional as ours
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure
from torchmetrics.utilities import reduce

from camshaft.compat.names.stand_ins import refuse_argument
from camshaft.hooks_core.support.messages import must_be, warn_user

_ACTION = "Use the function of `torchmetrics.functional`, where `task=` says what is classified."
_WHERE = "a metric"


# arguments


def by_name(where: str, positional: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name. Raise `TypeError` if one has no name, or is given twice."""
    if len(args) > len(positional):
        raise TypeError(f"{where} takes {len(positional)} such arguments by position. Pass the others by name.")
    return dict(**dict(zip(positional, args, strict=False)), **kwargs)


def earlier_arguments(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a metric without those that every metric had, if these have no effect.

    Raises:
        ValueError: If they ask for what there is not.
    """
    kept = dict(kwargs)
    for argument, nothing in (("is_multiclass", None), ("reduction", "elementwise_mean")):
        value, why = kept.pop(argument, None), "torchmetrics has no such argument"
        refuse_argument(argument, value, name, why, "See the one of `torchmetrics`.", (nothing,))
    return {argument: value for argument, value in kept.items() if value is not None or argument == "average"}


def take_average(where: str, given: dict[str, Any], default: str | None) -> Any:
    """Remove the average from arguments, under the name that some release has for it.

    Without one, `default` is returned; None asks for micro, with a warning.
    """
    for name in ("average", "class_reduction", "reduction"):
        if name in given:
            return given.pop(name)
    if default is None:
        warn_user(
            f"{where}: without `average` it is taken over all samples, as of 1.0; in 0.8 and 0.9 it was the mean over "
            'classes. Pass average="micro" or "macro".'
        )
    return default or "micro"


# labels and their counts


def get_num_classes(pred: Tensor, target: Tensor, num_classes: int | None = None) -> int:
    """Return the number of classes: the given one, or the largest label plus one."""
    return num_classes or int(max(pred.max(), target.max())) + 1


def labels_of(preds: Tensor, target: Tensor, threshold: float = 0.5) -> Tensor:
    """Return the labels of predictions, in the target's shape.

    Raises:
        ValueError: If they do not go together.
    """
    if preds.ndim == target.ndim + 1:
        preds = preds.argmax(dim=1)
    elif preds.is_floating_point():
        are_labels = bool((preds > 1).any() and (preds == preds.round()).all())
        preds = preds.to(torch.long) if are_labels else (preds >= threshold).to(torch.long)
    if preds.shape != target.shape:
        rule = f"of the target's shape {tuple(target.shape)}, or that with a dimension for classes after the first"
        raise ValueError(must_be("preds", rule, tuple(preds.shape), _WHERE, _ACTION))
    return preds


def correct_labels(
    preds: Tensor, target: Tensor, threshold: float = 0.5, top_k: int | None = None, subset_accuracy: bool = False
) -> Tensor:
    """Return which labels are predicted correctly; with `subset_accuracy`, of which samples all are.

    Raises:
        ValueError: If `preds` and `target` do not go together, or only labels are given for `top_k`.
    """
    if top_k is None or top_k == 1:
        correct = labels_of(preds, target, threshold) == target
    elif preds.ndim == target.ndim + 1:
        correct = (preds.topk(top_k, dim=1).indices == target.unsqueeze(1)).any(dim=1)
    else:
        rule = "left out, since there are no scores of classes"
        raise ValueError(must_be("top_k", rule, top_k, _WHERE, "Pass scores with a dimension for classes."))
    return correct.flatten(1).all(dim=1) if subset_accuracy and correct.ndim > 1 else correct


def counts_of(
    preds: Tensor, target: Tensor, num_classes: int | None = None, threshold: float = 0.5, multilabel: bool = False
) -> Tensor:
    """Return true positives, false positives, true negatives, false negatives and support by class: [5, classes].

    Args:
        preds: Labels, scores of classes, or probabilities of labels.
        target: Labels.
        num_classes: How many; 1 for a label that is there or not; None to take it from the labels.
        threshold: The probability from which on a label counts as predicted.
        multilabel: Whether the second dimension is that of labels which each are there or not.

    Raises:
        ValueError: If shapes do not go together, or a label is none of the classes.
    """
    both = [labels_of(preds, target, threshold), target.long()]
    if multilabel:
        guess, truth = (labels.movedim(1, 0).flatten(1).bool() for labels in both)
    elif num_classes == 1:
        guess, truth = (labels.reshape(1, -1).bool() for labels in both)
    else:
        num_labels = get_num_classes(both[0], both[1])
        if num_classes is not None and num_labels > num_classes:
            rule, action = f"{num_labels} or more", "Pass the number of all classes."
            raise ValueError(must_be("num_classes", rule, num_classes, _WHERE, action))
        classes = torch.arange(num_classes or num_labels, device=target.device).unsqueeze(1)
        guess, truth = (labels.flatten() == classes for labels in both)
    hits, guesses, support = (guess & truth).sum(1), guess.sum(1), truth.sum(1)
    missed = support - hits
    return torch.stack((hits, guesses - hits, truth.shape[1] - guesses - missed, missed, support)).float()


def share_of(counts: Tensor, false_positives: float, false_negatives: float, average: str | None) -> Tensor:
    """Return the share of true positives in these and the weighted false ones; 0 where there are none.

    Args:
        counts: As of `counts_of`.
        false_positives: Their weight: precision has 1 and 0, recall 0 and 1, and the index of Jaccard 1 and 1.
        false_negatives: Their weight.
        average: "micro", "macro", "weighted", "sum" or "none", or its name up to 0.9.

    Raises:
        ValueError: If there is no such average.
    """
    hits, wrong, _, missed, support = counts.sum(1, keepdim=True) if average == "micro" else counts
    shares = torch.as_tensor(hits / (hits + false_positives * wrong + false_negatives * missed)).nan_to_num(0.0)
    if average in ("micro", "macro", "elementwise_mean"):
        return shares.mean()
    if average == "weighted":
        return torch.as_tensor((shares * support).sum() / support.sum())
    if average in ("sum", "none", None):
        return shares.sum() if average == "sum" else shares
    rule = "'micro', 'macro', 'weighted', 'none', or up to 0.9 'elementwise_mean', 'sum', 'none'"
    raise ValueError(must_be("average", rule, average, _WHERE, _ACTION))


# metrics of classes

_Weights = Callable[[float], tuple[float, float]]


def weights_of_beta(beta: float) -> tuple[float, float]:
    """Return the weights of false positives and false negatives of the F-beta score."""
    return 1 / (1 + beta**2), beta**2 / (1 + beta**2)


def _of_classes(name: str, weights: _Weights, default: str | None, *positional: str) -> Callable[..., Tensor]:
    """Return a function for one of the shares of `share_of`.

    Args:
        name: Its name.
        weights: Returns the weights of false positives and false negatives for beta.
        default: The average where none is given; None for functions whose default depends on the release.
        positional: What follows `preds` and `target` by position; a string comes first, which is the average.
    """

    def function(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], str):  # from 1.2 on
            kwargs["average"], args = args[0], args[1:]
        given = by_name(name, positional, args, kwargs)
        average, beta = take_average(name, given, default), given.pop("beta", 1.0)
        counted = {one: given.pop(one) for one in ("num_classes", "threshold", "multilabel") if one in given}
        if default is None and counted.get("num_classes") is None and preds.ndim == target.ndim:
            counted["num_classes"] = 1 if preds.is_floating_point() else None
        if earlier_arguments(name, given):
            raise TypeError(f"{name} takes no argument {next(iter(given))!r} here. {_ACTION}")
        return share_of(counts_of(preds, target, **counted), *weights(beta), average)

    return function


precision = _of_classes("precision", lambda _: (1, 0), None, "num_classes", "reduction")
recall = _of_classes("recall", lambda _: (0, 1), None, "num_classes", "reduction")
f1 = _of_classes("f1", weights_of_beta, "micro", "num_classes")
f1_score = _of_classes("f1_score", weights_of_beta, "macro", "num_classes", "reduction")
fbeta = _of_classes("fbeta", weights_of_beta, "micro", "num_classes", "beta")
fbeta_score = _of_classes("fbeta_score", weights_of_beta, "macro", "beta", "num_classes", "reduction")


def precision_recall(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return precision and recall."""
    return precision(preds, target, *args, **kwargs), recall(preds, target, *args, **kwargs)


def accuracy(preds: Tensor, target: Tensor, num_classes: float | None = None, **given: Any) -> Tensor:
    """Return the share of correct labels, of any task; see the metric of that name.

    Args:
        preds: Labels, scores of classes, or probabilities of labels.
        target: Labels.
        num_classes: It makes no difference; a float is the threshold, as in 1.2.
        given: `threshold`, the probability from which on a label counts as predicted; without a mean over classes
            also `top_k`, how many of the highest scores count as predicted, and `subset_accuracy`, whether all labels
            of a sample have to be correct; and `class_reduction` or `reduction`.

    Raises:
        ValueError: If shapes do not go together.
    """
    if isinstance(num_classes, float):
        given["threshold"], num_classes = num_classes, None
    average = take_average("accuracy", given, "micro")
    if average in ("micro", "elementwise_mean", "sum"):
        return correct_labels(preds, target, **given).float().mean()
    return share_of(counts_of(preds, target, num_classes and int(num_classes), **given), 0, 1, average)


def confusion_matrix(preds: Tensor, target: Tensor, *args: Any, **given: Any) -> Tensor:
    """Return how often each class was predicted for each, as floats: [classes there, classes predicted].

    Args:
        preds: Labels, scores of classes, or probabilities of two classes.
        target: Labels.
        args: `num_classes`, None to take it from the labels, and `normalize`; a bool comes first, as up to 1.0.
        given: These, and `threshold`.
    """
    names = ("normalize", "num_classes") if args and isinstance(args[0], bool) else ("num_classes", "normalize")
    given.update(zip(names, args, strict=False))
    normalize: Any = given.get("normalize")
    if isinstance(normalize, bool):
        normalize = "true" if normalize else None
    labels, target = labels_of(preds, target, given.get("threshold", 0.5)).flatten(), target.long().flatten()
    num_classes = max(2, get_num_classes(labels, target, given.get("num_classes")))
    matrix = ours.confusion_matrix(labels, target, task="multiclass", num_classes=num_classes)
    return normalized(matrix.float(), normalize)


def normalized(matrix: Tensor, normalize: str | None) -> Tensor:
    """Return a confusion matrix whose rows ("true"), columns ("pred") or entries ("all") add up to 1; None for counts.

    Raises:
        ValueError: If `normalize` is something else.
    """
    sums = {"true": matrix.sum(1, keepdim=True), "pred": matrix.sum(0, keepdim=True), "all": matrix.sum()}
    if normalize in (None, "none"):
        return matrix
    if normalize not in sums:
        rule, where = "'true', 'pred', 'all' or None", "confusion_matrix"
        raise ValueError(must_be("normalize", rule, normalize, where, "Choose one of these."))
    return (matrix / sums[normalize]).nan_to_num(0.0)


def stat_scores_multiple_classes(
    pred: Tensor, target: Tensor, num_classes: int | None = None, argmax_dim: int = 1, reduction: Any = "none"
) -> tuple[Tensor, ...]:
    """Return true positives, false positives, true negatives, false negatives and support, each by class."""
    labels = pred.argmax(argmax_dim) if pred.ndim > target.ndim else pred
    return tuple(reduce(count, reduction) for count in counts_of(labels, target, num_classes))


def stat_scores(pred: Tensor, target: Tensor, class_index: int, argmax_dim: int = 1) -> tuple[Tensor, ...]:
    """Return the counts of a class, as up to 1.1; see `stat_scores_multiple_classes`.

    Raises:
        ValueError: If `class_index` is no class, as from 1.2 on.
    """
    if not isinstance(class_index, int):
        raise ValueError(must_be("class_index", "a class", class_index, "stat_scores", _ACTION))
    counts = stat_scores_multiple_classes(pred, target, max(class_index, int(target.max()), int(pred.max())) + 1)
    return tuple(count[class_index].long() for count in counts)


def iou(pred: Tensor, target: Tensor, *, num_classes: Any = None, threshold: float = 0.5, **scored: Any) -> Tensor:
    """Return the intersection over the union of each class, reduced.

    Args:
        pred: Labels, scores of classes, or probabilities of two classes.
        target: Labels.
        num_classes: How many; None to take it from the labels.
        threshold: The probability from which on a label counts as predicted.
        scored: See `iou_of`.
    """
    return iou_of(counts_of(pred, target, num_classes, threshold), **scored)


def iou_of(
    counts: Tensor,
    ignore_index: int | None = None,
    absent_score: float = 0.0,
    reduction: Any = "elementwise_mean",
    remove_bg: bool = False,
) -> Tensor:
    """Return `iou` of the counts of each class.

    Args:
        counts: As of `counts_of`.
        ignore_index: The class whose score is left out.
        absent_score: The score of a class that is neither predicted nor there.
        reduction: "elementwise_mean", "sum" or "none".
        remove_bg: Whether the score of class 0 is left out, as in 0.8 and 0.9.
    """
    scores = share_of(counts, 1, 1, None)
    scores[counts[[0, 1, 3]].sum(0) == 0] = absent_score
    left_out = 0 if remove_bg else ignore_index
    return reduce(scores[[index for index in range(len(scores)) if index != left_out]], reduction)


def dice_score(
    pred: Tensor,
    target: Tensor,
    bg: bool = False,
    nan_score: float = 0.0,
    no_fg_score: float = 0.0,
    reduction: Any = "elementwise_mean",
) -> Tensor:
    """Return the score of Dice of each class, reduced.

    Args:
        pred: Scores of classes, in the second dimension.
        target: Labels.
        bg: Whether class 0 counts.
        nan_score: It makes no difference, as a class that is there has a score.
        no_fg_score: The score of a class that is not there.
        reduction: "elementwise_mean", "sum" or "none".
    """
    counts = counts_of(pred, target, pred.shape[1])
    scores = share_of(counts, 0.5, 0.5, None)
    scores[counts[4] == 0] = no_fg_score
    return reduce(scores[0 if bg else 1 :], reduction)


# curves


def _hits_by_threshold(scores: Tensor, target: Tensor, pos_label: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return false positives, true positives and the score from which on there are so many, from the highest on."""
    order = scores.argsort(descending=True)
    scores, is_positive = scores[order], target[order] == pos_label
    is_last = torch.cat((scores[1:] != scores[:-1], torch.ones_like(is_positive[:1])))
    return (~is_positive).cumsum(0)[is_last], is_positive.cumsum(0)[is_last], scores[is_last]


def _roc_of_one(scores: Tensor, target: Tensor, pos_label: float) -> tuple[Tensor, Tensor, Tensor]:
    wrong, hits, thresholds = _hits_by_threshold(scores, target, pos_label)
    if wrong[-1] <= 0 or hits[-1] <= 0:
        rule = f"both {pos_label}, the positive label, and others"
        raise ValueError(must_be("target", rule, target, "roc", "Leave out batches of a single label."))
    start = wrong.new_zeros(1)
    rates = (torch.cat((start, count / count[-1])) for count in (wrong, hits))
    return *rates, torch.cat((thresholds[:1] + 1, thresholds))  # type: ignore[return-value]


def _precision_recall_of_one(scores: Tensor, target: Tensor, pos_label: float) -> tuple[Tensor, Tensor, Tensor]:
    wrong, hits, thresholds = _hits_by_threshold(scores, target, pos_label)
    used = slice(0, int((hits == hits[-1]).nonzero()[0]) + 1)  # up to the first threshold of full recall
    ratios, recalls = (hits / (hits + wrong))[used].flip(0), (hits / hits[-1])[used].flip(0)
    return torch.cat((ratios, ratios.new_ones(1))), torch.cat((recalls, recalls.new_zeros(1))), thresholds[used].flip(0)


def _auroc_of_one(*args: Any) -> Tensor:
    wrong, hits, _ = _roc_of_one(*args)
    return torch.trapz(hits, wrong)


def _average_precision_of_one(*args: Any) -> Tensor:
    ratios, recalls, _ = _precision_recall_of_one(*args)
    return -((recalls[1:] - recalls[:-1]) * ratios[:-1]).sum()


def _of_scores(name: str, of_one: Callable[..., Any], join: Callable[[list[Any], Tensor, Any], Any]) -> Any:
    """Return a function of scores, of one class or of several.

    Args:
        name: Its name.
        of_one: The function for one class.
        join: Gets the results of several classes, their support and `average`.
    """

    def function(
        preds: Tensor, target: Tensor, num_classes: Any = None, pos_label: Any = None, average: Any = "macro"
    ) -> Any:
        if not isinstance(num_classes, int | None):
            rule = "an int, since there are no weights of samples, as up to 1.0"
            raise TypeError(must_be("num_classes", rule, num_classes, name, _ACTION))
        if preds.ndim == target.ndim and not (num_classes and num_classes > 1 and name == "auroc"):
            return of_one(preds.flatten(), target.flatten(), 1 if pos_label is None else pos_label)
        if num_classes != preds.shape[1]:
            rule = f"{preds.shape[1]}, as `preds` has scores of so many classes"
            raise ValueError(must_be("num_classes", rule, num_classes, name, "Pass it, or the scores of one class."))
        classes = torch.arange(num_classes, device=target.device).unsqueeze(1)
        truth = target.movedim(1, 0).flatten(1) if preds.ndim == target.ndim else target.flatten() == classes
        columns = zip(preds.movedim(1, 0).flatten(1), truth, strict=True)
        return join([of_one(scores, there, 1) for scores, there in columns], truth.sum(1), average)

    return function


def _join_auroc(values: list[Tensor], support: Tensor, average: str | None) -> Any:
    if average is None:
        return values
    if average not in ("macro", "weighted"):
        raise ValueError(must_be("average", "'macro', 'weighted' or None", average, "auroc", "Choose one of these."))
    weights = support if average == "weighted" else torch.ones_like(support)
    return (torch.stack(values) * weights).sum() / weights.sum()


def _lists(results: list[Any], *_: Any) -> tuple[list[Any], ...]:
    return tuple(list(parts) for parts in zip(*results, strict=True))


roc = _of_scores("roc", _roc_of_one, _lists)
precision_recall_curve = _of_scores("precision_recall_curve", _precision_recall_of_one, _lists)
average_precision = _of_scores("average_precision", _average_precision_of_one, lambda values, *_: values)
auroc = _of_scores("auroc", _auroc_of_one, _join_auroc)


# metrics of numbers and images


def _of_values(name: str, function: Callable[..., Any], *positional: str, **settings: Any) -> Callable[..., Any]:
    """Return a function of torchmetrics that takes those arguments of every earlier metric that ask for nothing."""

    def of_values(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        given = by_name(name, positional, args, kwargs)
        return function(preds, target, **settings, **earlier_arguments(name, given))

    return of_values


mean_squared_error = _of_values("mean_squared_error", ours.mean_squared_error)
mean_absolute_error = _of_values("mean_absolute_error", ours.mean_absolute_error)
rmse = _of_values("rmse", ours.mean_squared_error, squared=False)
ssim = _of_values("ssim", structural_similarity_index_measure)
psnr = _of_values("psnr", peak_signal_noise_ratio, "data_range")
