"""Code that comes in the place of an earlier era's, to be filled in."""

from __future__ import annotations

from collections.abc import Sequence


def collecting(stage: str, word: str, step: str, outputs: str) -> str:
    """A step that collects its outputs, and the hook at the epoch's end that takes them.

    Args:
        stage: "training", "validation" or "test".
        word: The stage as the names of its hooks have it.
        step: The parameters of the step.
        outputs: What the hook calls the outputs.
    """
    kept = f"self.{stage}_outputs"
    lines = [
        "def __init__(self, ...):",
        "    ...",
        f"    {kept} = []",
        "",
        f"def {stage}_step({step}):",
        "    ...",
        f"    {kept}.append(output)  # detached, and only what the end of the epoch needs",
        "    return output",
        "",
        f"def on_{word}_epoch_end(self):",
        f"    {outputs} = {kept}",
        "    ...",
        f"    {kept}.clear()",
    ]
    return "\n".join(lines)


def manual_optimization(parameters: Sequence[str], index: str) -> str:
    """A step that steps several optimizers by hand.

    Args:
        parameters: The names of its parameters without that of the optimizer's index.
        index: The name of the optimizer's index.
    """
    lines = [
        "def __init__(self, ...):",
        "    ...",
        "    self.automatic_optimization = False",
        "",
        f"def training_step({', '.join(['self', *parameters])}):",
        f"    for {index}, optimizer in enumerate(self.optimizers()):",
        "        self.toggle_optimizer(optimizer)",
        f"        loss = self.loss_of({', '.join([*parameters, index])})  # what `training_step` computes now",
        "        optimizer.zero_grad()",
        "        self.manual_backward(loss)",
        "        optimizer.step()",
        "        self.untoggle_optimizer(optimizer)",
    ]
    return "\n".join(lines)


def rewritten_step(epoch: str, batch_idx: str, optimizer: str) -> str:
    """An `optimizer_step` of today; the arguments are what its owner calls them."""
    return "\n".join(
        [
            f"def optimizer_step(self, {epoch}, {batch_idx}, {optimizer}, optimizer_closure):",
            "    ...",
            f"    {optimizer}.step(closure=optimizer_closure)",
        ]
    )


def returned_dictionary(is_step: bool) -> str:
    """What logs in place of a returned dictionary; a step still returns its loss."""
    lines = ["self.log_dict(log)", "self.log_dict(progress_bar, prog_bar=True)", *(["return loss"] if is_step else [])]
    return "\n".join(lines)
