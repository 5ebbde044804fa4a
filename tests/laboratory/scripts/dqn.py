"""DQN: a replay buffer, exploration that decays, a target network that is synchronised now and then."""

import copy
import random

import torch
from switch import RUN, holdfast, record
from torch import nn

random.seed(3)
torch.manual_seed(3)


class Replay:
    """A ring of transitions in tensors."""

    def __init__(self, size):
        self.states, self.rewards = torch.zeros(size, 4), torch.zeros(size)
        self.nexts, self.actions = torch.zeros(size, 4), torch.zeros(size, dtype=torch.long)
        self.count = 0

    def add(self, state, action, reward, following):
        at = self.count % len(self.states)
        self.states[at], self.actions[at], self.rewards[at], self.nexts[at] = state, action, reward, following
        self.count += 1

    def sample(self, n):
        at = torch.tensor(random.choices(range(min(self.count, len(self.states))), k=n))
        return self.states[at], self.actions[at], self.rewards[at], self.nexts[at]

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


class World:
    """An environment with a state of its own."""

    def __init__(self):
        self.at = torch.zeros(4)

    def move(self, action):
        self.at = (0.9 * self.at + 0.3 * torch.randn(4) + 0.1 * action).clamp(-2, 2)
        return self.at, float(self.at.sum() - 0.1 * action)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


env, replay = World(), Replay(40)
q_net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
target = copy.deepcopy(q_net)
opt = torch.optim.Adam(q_net.parameters(), lr=0.01)

with holdfast.Run(
    RUN, every="3 steps", q_net=q_net, target=target, optimizer=opt, replay=replay, env=env
) as run:
    for step in run.steps(40):
        epsilon = max(0.1, 1 - step / 30)
        state = env.at
        explore = random.random() < epsilon
        action = random.randrange(3) if explore else int(q_net(state).argmax())
        following, reward = env.move(action)
        replay.add(state, action, reward, following)
        s, a, r, n = replay.sample(8)
        with torch.no_grad():
            goal = r + 0.9 * target(n).max(1).values
        loss = nn.functional.smooth_l1_loss(q_net(s).gather(1, a[:, None])[:, 0], goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 7 == 6:
            target.load_state_dict(q_net.state_dict())
        record(run.step, loss)
        run.end_step(loss=loss)
