"""What the commands of the pages call `mymodule`, `my_project.model` and `checks`."""

import torch

from camshaft.trainer import DataModule, TrainingModule


class Net(TrainingModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(3, 1)


class MyModel(Net):
    pass


class Data(DataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()


def is_damaged(module: Net) -> bool:
    return not all(torch.isfinite(one).all() for one in module.parameters())
