"""One small fit, written out hook by hook and receiver by receiver."""

from __future__ import annotations

from bare_parts import BareStrategy, BareTrainer, Net, Sized, make_batches, seeded, sgd
from overriding_parts import OVERRIDES, Data, override
from torch.optim.lr_scheduler import StepLR

from camshaft.hooks_core import CATALOGUE, Callback
from camshaft.hooks_core.trace import Trace

VALIDATION = """
on_validation_start: First Monitor Net After BareStrategy
on_validation_epoch_start: First Monitor After Net BareStrategy
on_validation_batch_start: First Monitor After Net BareStrategy
validation_step: Net
on_validation_batch_end: First Monitor After Net BareStrategy
on_validation_epoch_end: First Monitor After Net BareStrategy
on_validation_end: First Monitor After Net BareStrategy
"""

BATCH = f"""
on_train_batch_start: First Monitor Net After BareStrategy
training_step: Net
on_before_zero_grad: First Monitor After Net
on_before_backward: First Monitor After Net
on_after_backward: First Monitor After Net
on_before_optimizer_step: First Monitor After Net
on_train_batch_end: First Monitor After Net
{VALIDATION}
"""

EPOCH = f"""
on_train_epoch_start: First Monitor After Net
{BATCH}
{BATCH}
on_train_epoch_end: First After Net Monitor
"""

EXPECTED = f"""
prepare_data: Data Net
setup: First Monitor After Data Net
configure_sharded_model: Net
configure_model: Net
train_dataloader: Data
val_dataloader: Data
configure_optimizers: Net
on_fit_start: First Monitor After Net BareStrategy
on_sanity_check_start: First Monitor After Net BareStrategy
{VALIDATION}
on_sanity_check_end: First Monitor After Net BareStrategy
on_train_start: First Monitor After Net BareStrategy
{EPOCH}
{EPOCH}
on_train_end: First Monitor After Net BareStrategy
on_fit_end: First Monitor Net After BareStrategy
teardown: First Monitor After Data Net
"""


class First(Callback):
    def state_dict(self) -> dict[str, int]:
        return {"number": 1}


class Monitor(Callback):
    monitors = True


class After(Callback):
    after_module = frozenset({"on_train_batch_start", "on_validation_start", "on_fit_end"})


EXPECTED_WINDOW = """
on_train_batch_start: After
training_step: Net
on_before_zero_grad: After Net
optimizer_zero_grad: Net
on_before_backward: After Net
backward: Net
on_after_backward: After Net
on_train_batch_end: After
on_train_batch_start: After
optimizer_step: Net
  training_step: Net
  on_before_backward: After Net
  backward: Net
  on_after_backward: After Net
  on_before_optimizer_step: After Net
  configure_gradient_clipping: Net
lr_scheduler_step: Net
on_train_batch_end: After
""".strip().splitlines()


EXPECTED_HOOKS_OF_WINDOW = {line.strip().partition(":")[0] for line in EXPECTED_WINDOW}


def record_small_fit() -> Trace:
    module, strategy = seeded(Net), BareStrategy()
    data = Data(train=make_batches(2), val=make_batches(1))
    callbacks = [First(), Monitor(), After()]
    trace = Trace()
    for callback in callbacks:
        trace.record(callback, "callback")
    trace.record(data, "data", only=["prepare_data", "setup", "train_dataloader", "val_dataloader", "teardown"])
    trace.record(module, "module")
    trace.record(strategy, "strategy")
    trainer = BareTrainer(
        module,
        callbacks=callbacks,
        data=data,
        strategy=strategy,
        max_epochs=2,
        num_sanity_val_steps=1,
        val_check_interval=1,
    )
    trainer.fit()
    return trace


def emissions(trace: Trace) -> list[str]:
    """A line for each emission: the hook, then its receivers in order; enclosed calls are indented."""
    lines: list[str] = []
    depth = 0
    previous = None
    for event in trace:
        if event.kind == "exit":
            depth -= 1
            continue
        line = "  " * depth + event.hook
        if previous == (line, event.arguments) and lines:
            lines[-1] += f" {event.receiver}"
        else:
            lines.append(f"{line}: {event.receiver}")
        previous = (line, event.arguments)
        depth += 1
    return lines


def test_a_fit_with_sanity_check_and_validation_in_the_middle_and_at_the_end_of_two_epochs() -> None:
    assert emissions(record_small_fit()) == [line for line in EXPECTED.splitlines() if line]


def test_an_accumulation_window_of_two_batches_with_every_override() -> None:
    def configure(module: Net) -> object:
        optimizer = sgd(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1), "interval": "step"}}

    hooks = [spec.name for spec in CATALOGUE.values() if spec.name in EXPECTED_HOOKS_OF_WINDOW]
    module, callback, trace = override(seeded(Net, configure), *OVERRIDES), After(), Trace()
    trace.record(callback, "callback", only=[hook for hook in hooks if hook.startswith("on_")])
    trace.record(module, "module", only=[hook for hook in hooks if "_batch_" not in hook])
    BareTrainer(module, callbacks=[callback], max_epochs=1, accumulate_grad_batches=2).fit(
        Sized(make_batches(2)), Sized([])
    )
    assert emissions(trace) == EXPECTED_WINDOW
