"""What the commands of the pages call `mymodule` and `my_project.model`."""

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
