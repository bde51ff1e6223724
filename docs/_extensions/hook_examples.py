"""A program for each hook that overrides it and runs a verb that calls it."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from textwrap import indent

import attrs

from camshaft.hooks_core.dispatch.binding import arguments_of
from camshaft.hooks_core.eras.hooks import EVERYDAY_NAMES, EraSpec
from camshaft.hooks_core.spec import Receiver

_LOADER = "DataLoader(torch.ones(4, 2), batch_size=2)"
_LOSS = "return self.layer(batch).square().mean()"
_LONG_LOADER = "DataLoader(torch.ones(4, 4), batch_size=2)"

METHODS = {
    "__init__": ("", "super().__init__()\nself.layer = torch.nn.Linear(2, 1)"),
    "training_step": ("batch, batch_idx", _LOSS),
    "validation_step": ("batch, batch_idx", _LOSS),
    "test_step": ("batch, batch_idx", _LOSS),
    "predict_step": ("batch, batch_idx", "return self.layer(batch)"),
    "configure_optimizers": ("", "return torch.optim.SGD(self.parameters(), lr=0.1)"),
}
"""The methods that the module of an example may need, each with its arguments and its body."""

BODIES = {
    "configure_callbacks": "return [ModelSummary()]",
    **dict.fromkeys(("train_dataloader", "val_dataloader", "test_dataloader"), f"return {_LOADER}"),
    **dict.fromkeys(("predict_dataloader", "tng_dataloader"), f"return {_LOADER}"),
    **dict.fromkeys(("on_before_batch_transfer", "on_after_batch_transfer"), "return batch * 2"),
    "transfer_batch_to_device": "return batch.to(device)",
    "state_dict": 'return {"num_runs": 1}',
    "on_save_checkpoint": 'checkpoint["num_runs"] = 1',
    "on_hpc_save": 'checkpoint["num_runs"] = 1',
    "backward": "loss.backward()",
    "optimizer_step": "optimizer.step(closure=optimizer_closure)",
    "optimizer_zero_grad": "optimizer.zero_grad(set_to_none=True)",
    "configure_gradient_clipping": "self.clip_gradients(optimizer, 0.5, gradient_clip_algorithm)",
    "lr_scheduler_step": "scheduler.step()",
    "tbptt_split_batch": "return batch.split(split_size, dim=1)",
    **{f"on_{word}_model_eval": "self.eval()" for word in ("validation", "test", "predict")},
    **{f"on_{word}_model_train": "self.train()" for word in ("validation", "test", "predict")},
    "on_validation_model_zero_grad": "self.zero_grad()",
    "init_optimizers": "return [optimizers], []",
    **dict.fromkeys(("get_progress_bar_dict", "get_tqdm_dict"), 'return {"layers": 1}'),
    "on_tng_metrics": 'metrics["layers"] = 1',
    "configure_apex": "return amp.initialize(model, optimizers, opt_level=amp_level)",
    "configure_ddp": "return torch.nn.parallel.DistributedDataParallel(model, device_ids=device_ids)",
    "init_ddp_connection": 'torch.distributed.init_process_group("gloo", rank=global_rank, world_size=world_size)',
    **{f"{word}_step_end": "return outputs" for word in ("training", "validation", "test")},
    "training_end": "return outputs",
}
"""What an override does beside printing its name, where it must do something or has a use."""

OTHER_METHODS: dict[str, dict[str, tuple[str, str]]] = {
    "on_exception": {"training_step": ("batch, batch_idx", 'raise ValueError("no loss")')},
    "on_keyboard_interrupt": {"training_step": ("batch, batch_idx", "raise KeyboardInterrupt")},
    "lr_scheduler_step": {
        "configure_optimizers": (
            "",
            "optimizer = torch.optim.SGD(self.parameters(), lr=0.1)\n"
            "return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)]",
        )
    },
    "tbptt_split_batch": {
        "training_step": (
            "batch, batch_idx, hiddens",
            'return {"loss": self.layer(batch).square().mean(), "hiddens": batch.mean()}',
        )
    },
    "load_state_dict": {"state_dict": ("", BODIES["state_dict"])},
}
"""Methods that only the example of one hook has, or has in place of those above."""

NOT_RUN = {
    "configure_apex": "Only a run with apex calls it.",
    "configure_ddp": "Only a run on several processes calls it.",
    "init_ddp_connection": "Only a run on several processes calls it.",
    "on_post_move_to_device": "Only a run on a TPU calls it.",
}
"""The hooks that no run on one CPU calls, with the reason."""

SETTINGS = {
    **dict.fromkeys(("on_sanity_check_start", "on_sanity_check_end"), ("num_sanity_val_steps=1", "logger=False")),
    "tbptt_split_batch": ("truncated_bptt_steps=2", "barebones=True"),
    **dict.fromkeys(("get_progress_bar_dict", "get_tqdm_dict", "summarize"), ("logger=False",)),
}
"""Arguments of the trainer where a bare one does not call a hook."""

_WORDS = {"validate": "validation", "test": "test", "predict": "predict"}
_LOADERS = {"train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "tng_dataloader"}
_BEFORE_LOADERS = {f"on_{name}": name for name in _LOADERS}
_VERBS_OF_LOADERS = {"val_dataloader": "validate", "test_dataloader": "test", "predict_dataloader": "predict"}
_RAISED = {"on_exception": "ValueError", "on_keyboard_interrupt": "KeyboardInterrupt"}
_FITS_WITH_VALIDATION = {"on_sanity_check_start", "on_sanity_check_end", "on_validation_model_zero_grad"}
_SIMPLE = ("batch_idx", "dataloader_idx", "epoch", "stage", "split_size", "mode", "world_size")


@attrs.frozen
class Example:
    """A program that overrides a hook.

    Attributes:
        code: Its source.
        lines: The first and the last line of the override.
        reason: Why a run of it does not call the hook; empty if it does.
    """

    code: str
    lines: tuple[int, int]
    reason: str = ""

    def output(self) -> str:
        """Return what the program prints. It runs in a folder of its own."""
        printed = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(folder))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(contextlib.redirect_stdout(printed))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            exec(compile(self.code, "example.py", "exec"), {"__name__": "example"})
        return printed.getvalue()


def example_of(spec: EraSpec) -> Example:
    """Return the example of a hook: a callback if it may be one, else a module."""
    kind = Receiver.CALLBACK if Receiver.CALLBACK in spec.receivers else Receiver.MODULE
    override = _override(spec, kind)
    others = OTHER_METHODS.get(spec.name, {})
    of_model = {
        name: METHODS.get(name) or ("", BODIES[name]) for name in ("__init__", *_needed(spec)) if name != spec.name
    }
    of_model |= {name: method for name, method in others.items() if name in of_model}
    methods = [_method(name, *method) for name, method in of_model.items()]
    if kind is Receiver.MODULE:
        methods.append(override)
    if spec.name in EVERYDAY_NAMES or _is_earlier(spec):  # a hook alone may be left over in a class of today
        methods.insert(0, f'hook_era = "{spec.eras[-1]}"')
    classes = ["class Model(TrainingModule):\n" + indent("\n\n".join(methods), "    ")]
    if kind is Receiver.CALLBACK:
        further = [_method(name, *method) for name, method in others.items() if name not in METHODS]
        classes.insert(0, "class Example(Callback):\n" + indent("\n\n".join([*further, override]), "    "))
    code = "\n\n\n".join([_imports(spec, kind), *classes, _run(spec, kind)]) + "\n"
    first = code[: code.index(f"def {spec.name}(")].count("\n") + 1
    return Example(code, (first, first + override.count("\n")), NOT_RUN.get(spec.name, ""))


def _override(spec: EraSpec, kind: Receiver) -> str:
    era = None if spec.is_current else spec.eras_of(kind)[-1]
    arguments = arguments_of(spec.as_in(era), kind)
    shown = [f'"{spec.name}"', *(name for name in arguments if name in _SIMPLE)]
    if "exception" in arguments:
        shown.append("repr(exception)")
    body = BODIES.get(spec.name) or METHODS.get(spec.name, ("", ""))[1]
    return _method(spec.name, ", ".join(arguments), f"print({', '.join(shown)})" + f"\n{body}" * bool(body))


def _method(name: str, arguments: str, body: str) -> str:
    return f"def {name}({', '.join(filter(None, ['self', arguments]))}):\n{indent(body, '    ')}"


def _is_earlier(spec: EraSpec) -> bool:
    return not spec.is_current


def _verb(spec: EraSpec) -> str:
    loader = _BEFORE_LOADERS.get(spec.name, spec.name)
    if loader in _LOADERS:
        return _VERBS_OF_LOADERS.get(loader, "fit")
    return spec.stage if spec.stage in _WORDS and spec.name not in _FITS_WITH_VALIDATION else "fit"


def _needed(spec: EraSpec) -> list[str]:
    """Return the methods that the module needs."""
    verb = _verb(spec)
    loader = [_BEFORE_LOADERS[spec.name]] if spec.name in _BEFORE_LOADERS else []
    if verb != "fit":
        return [f"{_WORDS[verb]}_step", *loader]
    validates = ["validation_step"] * (spec.name in _FITS_WITH_VALIDATION)
    return ["training_step", *validates, "configure_optimizers", *loader]


def _imports(spec: EraSpec, kind: Receiver) -> str:
    package = "compat" if _is_earlier(spec) else "trainer"
    callback = ["from camshaft.hooks_core import Callback"] * (kind is Receiver.CALLBACK)
    summary = ["from camshaft.callbacks import ModelSummary"] * (spec.name == "configure_callbacks")
    own = [*summary, f"from camshaft.{package} import Trainer, TrainingModule"]
    own = sorted([*callback, *own])
    return "\n".join(["import torch", "from torch.utils.data import DataLoader", "", *own])


def _run(spec: EraSpec, kind: Receiver) -> str:
    """Return the lines that run the verb which calls the hook."""
    verb = _verb(spec)
    settings = ["max_epochs=1"] * (verb == "fit") + ["callbacks=[Example()]"] * (kind is Receiver.CALLBACK)
    settings += SETTINGS.get(spec.name, ("barebones=True",))
    trainer = f"trainer = Trainer({', '.join(settings)})"
    loader = _LONG_LOADER if spec.name == "tbptt_split_batch" else _LOADER
    loaders = (
        []
        if _BEFORE_LOADERS.get(spec.name, spec.name) in _LOADERS
        else [loader] * (1 + (spec.name in _FITS_WITH_VALIDATION))
    )
    run = f"trainer.{verb}({', '.join(['Model()', *loaders])})"
    if spec.name in _RAISED:
        run = f'try:\n    {run}\nexcept {_RAISED[spec.name]} as error:\n    print("raised:", repr(error))'
    lines = [trainer, run]
    if spec.stage == "checkpoint":
        lines.append('trainer.save_checkpoint("model.ckpt")')
        if "load" in spec.name:
            lines.append(f'trainer.fit(Model(), {_LOADER}, ckpt_path="model.ckpt")')
    return "\n".join(lines)
