"""Classes in the style of the releases in their names."""

from __future__ import annotations

from collections import OrderedDict

from camshaft.hooks_core import Callback


class Gan05:
    def training_step(self, batch, batch_nb, optimizer_i):
        return OrderedDict({"loss": batch, "progress_bar": {"g_loss": batch}, "log": {"g_loss": batch}})

    def optimizer_step(self, current_epoch, batch_nb, optimizer, optimizer_i, second_order_closure=None):
        if optimizer_i == 0:
            optimizer.step()
            optimizer.zero_grad()

    def on_batch_start(self): ...


class Net05:
    """The names of 0.5.3 itself."""

    def training_step(self, batch, batch_nb):
        output = {"loss": batch}
        output["log"] = {"loss": batch}
        return output

    def validation_step(self, batch, batch_nb, dataset_idx): ...

    def validation_end(self, outputs):
        return {"val_loss": outputs}

    def optimizer_step(self, epoch_nb, batch_nb, optimizer, optimizer_i, second_order_closure=None):
        optimizer.step()


class Classifier07:
    def training_step(self, batch, batch_idx):
        loss = batch
        return dict(loss=loss, log={"train_loss": loss})

    def backward(self, use_amp, loss, optimizer, optimizer_idx): ...

    def init_ddp_connection(self, proc_rank, world_size): ...


class Classifier08:
    def training_step(self, batch, batch_idx):
        return self.shared(batch)

    def shared(self, batch):
        return {"loss": batch, "log": {"loss": batch}}

    def on_batch_start(self, batch): ...

    def transfer_batch_to_device(self, batch, device): ...

    def backward(self, trainer, loss, optimizer, optimizer_idx): ...

    def on_pre_performance_check(self): ...


class WarmUp08:
    def optimizer_step(
        self, current_epoch, batch_idx, optimizer, optimizer_idx, second_order_closure, on_tpu, using_native_amp,
        using_lbfgs,
    ):  # fmt: skip
        optimizer.step()
        optimizer.zero_grad()


class Warm09:
    def training_step(self, batch, batch_idx):
        return {"loss": batch, "log": {"loss": batch}}

    def on_train_epoch_start(self): ...

    def on_train_batch_end(self, batch, batch_idx, dataloader_idx): ...

    def training_epoch_end(self, outputs):
        return {"log": {"loss": outputs}}


class Vae10:
    def training_step(self, batch, batch_idx):
        self.log("loss", batch)
        return batch

    def on_train_epoch_end(self, outputs): ...

    def training_epoch_end(self, outputs): ...


class Gan13:
    def training_step(self, batch, batch_idx, optimizer_idx): ...

    def optimizer_step(
        self, epoch, batch_idx, optimizer, optimizer_idx, optimizer_closure, on_tpu=False, using_native_amp=False,
        using_lbfgs=False,
    ):  # fmt: skip
        optimizer.step(closure=optimizer_closure)


class Docs12:
    """The names of 0.5 with the closure of 1.x, as its documentation had them."""

    def optimizer_step(
        self, current_epoch, batch_nb, optimizer, optimizer_i, closure, on_tpu=False, using_native_amp=False,
        using_lbfgs=False,
    ):  # fmt: skip
        optimizer.step(closure=closure)


class Ignores09:
    """An argument of another name at the place of the closure, which it ignores: gradients have to be there."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, closure=None, using_native_amp=None):
        optimizer.step()


class Recent15:
    def training_step(self, batch, batch_idx):
        self.log_dict({"log": batch})
        return batch

    def on_before_backward(self, loss): ...

    def validation_epoch_end(self, outputs): ...

    def on_before_optimizer_step(self, optimizer, optimizer_idx): ...

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer, optimizer_idx): ...


class Last19:
    def lr_scheduler_step(self, scheduler, optimizer_idx, metric): ...

    def configure_gradient_clipping(self, optimizer, optimizer_idx, gradient_clip_val, gradient_clip_algorithm): ...

    def on_train_epoch_end(self): ...


class Passes15:
    def training_epoch_end(self, outputs): ...

    def optimizer_step(self, *args, **kwargs): ...


class Ema13(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx): ...

    def on_epoch_end(self, trainer, pl_module): ...


class Printing09(Callback):
    def on_train_batch_end(self, trainer, pl_module, batch, batch_idx, dataloader_idx): ...

    def on_init_end(self, trainer): ...


class Outputs12(Callback):
    def on_train_epoch_end(self, trainer, pl_module, outputs): ...
