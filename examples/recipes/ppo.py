"""Train a policy that balances a pole on a cart, by proximal policy optimization (PPO).

The environments run inside `training_step`, which makes several updates by hand of what they gave. Their states are
buffers of the module, so that a run that is stopped goes on from them. The picture has poles before and after:

    python examples/recipes/ppo.py --output pole.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributions import Categorical

from camshaft.trainer import Trainer, TrainingModule, seed_everything


def fallen(state: Tensor) -> Tensor:
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21)  # metres and radians


def push(state: Tensor, action: Tensor) -> Tensor:
    """Return the states (place, speed, angle, angular speed) 0.02 s later, pushed to the left or to the right."""
    speed, angle, turning = state[:, 1:].unbind(dim=1)
    force = (20.0 * action - 10.0 + 0.05 * turning.square() * angle.sin()) / 1.1
    bending = (9.8 * angle.sin() - angle.cos() * force) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    return state + 0.02 * torch.stack([speed, force - bending * angle.cos() / 22, turning, bending], dim=1)


class PPO(TrainingModule):
    state: Tensor
    age: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False  # `training_step` makes several updates of what it has seen
        self.register_buffer("state", 0.1 * torch.rand(16, 4) - 0.05)
        self.register_buffer("age", torch.zeros(16))
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    @torch.no_grad()
    def play(self) -> list[Tensor]:
        """Return states, actions, their log probabilities, values and advantages of 64 steps."""
        steps = []
        for _ in range(64):
            choices = Categorical(logits=self.policy(self.state))
            after = push(self.state, action := choices.sample())
            ended = fallen(after) | (self.age >= 499)
            values = self.value(torch.cat([self.state, after])).squeeze(1).chunk(2)
            error = 1 + 0.99 * values[1] * ~fallen(after) - values[0]  # each step on the way is worth 1
            steps.append((self.state.clone(), action, choices.log_prob(action), values[0], error, ended))
            self.state.copy_(torch.where(ended[:, None], 0.1 * torch.rand_like(after) - 0.05, after))
            self.age = torch.where(ended, 0, self.age + 1)
        *seen, advantages, ends = (torch.stack(column) for column in zip(*steps, strict=True))
        for idx in reversed(range(63)):
            advantages[idx] += 0.99 * 0.95 * advantages[idx + 1] * ~ends[idx]
        self.log("age", self.age.mean(), prog_bar=True)
        return [column.flatten(0, 1) for column in (*seen, advantages)]

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        states, actions, log_probs, values, advantages = self.play()
        aims, advantages = values + advantages, (advantages - advantages.mean()) / advantages.std()
        optimizer: Any = self.optimizers()
        for part in torch.cat([torch.randperm(len(aims)) for _ in range(4)]).chunk(16):
            choices = Categorical(logits=self.policy(states[part]))
            ratio = (choices.log_prob(actions[part]) - log_probs[part]).exp()
            gain = torch.minimum(ratio * advantages[part], ratio.clamp(0.8, 1.2) * advantages[part]).mean()
            error = nn.functional.mse_loss(self.value(states[part]).squeeze(1), aims[part])
            optimizer.zero_grad()
            self.manual_backward(0.01 * error - gain - 0.01 * choices.entropy().mean())
            self.clip_gradients(optimizer, gradient_clip_val=0.5)
            optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=2e-3)

    @torch.no_grad()
    def balance(self) -> Tensor:
        """Return the angles (500, 16) of poles that the likelier action balances; NaN once one has fallen."""
        state, stands, angles = 0.1 * torch.rand_like(self.state) - 0.05, torch.ones_like(self.age).bool(), []
        for _ in range(500):
            state = push(state, self.policy(state).argmax(dim=1))
            stands &= ~fallen(state)
            angles.append(state[:, 2].where(stands, torch.nan))
        return torch.stack(angles).cpu()


def draw(path: Path, before: Tensor, after: Tensor) -> None:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, angles, title in zip(figure.subplots(1, 2), (before, after), ("before", "after"), strict=True):
        axes.plot(0.02 * torch.arange(1, 501), angles, linewidth=1)
        axes.set(title=title, xlabel="seconds", ylabel="angle of the pole in radians", ylim=(-0.22, 0.22))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a policy that balances a pole on a cart.")
    parser.add_argument("--max-steps", type=int, default=60, help="rollouts of 64 steps to learn from (default: 60)")
    parser.add_argument("--output", type=Path, default=Path("pole.png"), help="the picture")
    arguments = parser.parse_args()
    seed_everything(0)
    model = PPO()
    before = model.balance()
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(model, range(arguments.max_steps))  # the batches count rollouts
    after = model.balance()
    draw(arguments.output, before, after)
    first, last = (float((~angles.isnan()).float().sum(dim=0).mean()) for angles in (before, after))
    print(f"picture: {arguments.output.resolve()}\nsteps of 500 that a pole stands: {first:.0f}, then {last:.0f}")


if __name__ == "__main__":
    main()
