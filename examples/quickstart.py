import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from camshaft.trainer import Trainer, TrainingModule


class Digits(TrainingModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        accuracy = (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, validation = random_split(dataset, [0.8, 0.2])
trainer = Trainer(max_epochs=20, logger=False, enable_checkpointing=False)
trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(validation, batch_size=60))
print(f"validation accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")
