"""Deep Q-learning of 2020: the agent plays while it learns, from an iterable dataset over its replay buffer."""

from collections import OrderedDict, deque, namedtuple

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torch.utils.data.dataset import IterableDataset

Experience = namedtuple('Experience', ('state', 'action', 'reward', 'done', 'new_state'))
LENGTH = 6


class Corridor:
    """Walk to the right end; each step costs."""

    def reset(self):
        self.place, self.steps = 0, 0
        return self._state()

    def step(self, action):
        self.steps += 1
        self.place = max(0, self.place + (1 if action == 1 else -1))
        done = self.place == LENGTH - 1
        return self._state(), 1.0 if done else -0.1, done or self.steps >= 30, {}

    def _state(self):
        return np.eye(LENGTH, dtype=np.float32)[self.place]


class ReplayBuffer:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def __len__(self):
        return len(self.buffer)

    def append(self, experience):
        self.buffer.append(experience)

    def sample(self, batch_size):
        indices = np.random.choice(len(self.buffer), batch_size, replace=False)
        states, actions, rewards, dones, next_states = zip(*[self.buffer[idx] for idx in indices])
        return (np.array(states), np.array(actions), np.array(rewards, dtype=np.float32),
                np.array(dones, dtype=bool), np.array(next_states))


class RLDataset(IterableDataset):
    def __init__(self, buffer, sample_size=200):
        self.buffer = buffer
        self.sample_size = sample_size

    def __iter__(self):
        states, actions, rewards, dones, new_states = self.buffer.sample(self.sample_size)
        for i in range(len(dones)):
            yield states[i], actions[i], rewards[i], dones[i], new_states[i]


class Agent:
    def __init__(self, env, replay_buffer):
        self.env = env
        self.replay_buffer = replay_buffer
        self.state = env.reset()

    @torch.no_grad()
    def play_step(self, net, epsilon):
        if np.random.random() < epsilon:
            action = np.random.randint(2)
        else:
            action = int(net(torch.tensor(self.state[None])).argmax())
        new_state, reward, done, _ = self.env.step(action)
        self.replay_buffer.append(Experience(self.state, action, reward, done, new_state))
        self.state = self.env.reset() if done else new_state
        return reward, done


class DQNLightning(pl.LightningModule):
    def __init__(self, hparams):
        super().__init__()
        self.hparams = hparams
        self.net = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
        self.target_net = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
        self.target_net.load_state_dict(self.net.state_dict())
        self.buffer = ReplayBuffer(1000)
        self.agent = Agent(Corridor(), self.buffer)
        self.total_reward = 0
        self.episode_reward = 0
        self.rewards = []
        for _ in range(200):
            self.agent.play_step(self.net, epsilon=1.0)

    def forward(self, x):
        return self.net(x)

    def dqn_mse_loss(self, batch):
        states, actions, rewards, dones, next_states = batch
        state_action_values = self.net(states).gather(1, actions.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_state_values = self.target_net(next_states).max(1)[0]
            next_state_values[dones] = 0.0
        expected = next_state_values * self.hparams['gamma'] + rewards
        return nn.MSELoss()(state_action_values, expected)

    def training_step(self, batch, nb_batch):
        epsilon = max(0.05, 1.0 - self.global_step / self.hparams['eps_last_frame'])
        reward, done = self.agent.play_step(self.net, epsilon)
        self.episode_reward += reward
        loss = self.dqn_mse_loss(batch)
        if done:
            self.total_reward = self.episode_reward
            self.rewards.append(self.episode_reward)
            self.episode_reward = 0
        if self.global_step % self.hparams['sync_rate'] == 0:
            self.target_net.load_state_dict(self.net.state_dict())
        log = {'total_reward': torch.tensor(self.total_reward), 'reward': torch.tensor(reward), 'train_loss': loss}
        return OrderedDict({'loss': loss, 'log': log, 'progress_bar': {'total_reward': torch.tensor(self.total_reward)}})

    def configure_optimizers(self):
        return [optim.Adam(self.net.parameters(), lr=self.hparams['lr'])]

    def train_dataloader(self):
        return DataLoader(dataset=RLDataset(self.buffer, 64), batch_size=16)


def main(root):
    np.random.seed(1)
    hparams = {'gamma': 0.9, 'eps_last_frame': 400, 'sync_rate': 10, 'lr': 1e-2}
    model = DQNLightning(hparams)
    trainer = pl.Trainer(default_root_dir=root, gpus=0, distributed_backend=None, max_epochs=200, early_stop_callback=False,
                         val_percent_check=0, progress_bar_refresh_rate=0, weights_summary=None, checkpoint_callback=False)
    trainer.fit(model)
    return trainer, model
