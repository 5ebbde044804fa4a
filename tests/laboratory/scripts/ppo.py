"""PPO as cleanrl writes it: a rollout, then several passes over shuffled minibatches; one step is both."""

import numpy as np
import torch
from switch import RUN, holdfast, record
from torch import nn

np.random.seed(4)
torch.manual_seed(4)


class Envs:
    def __init__(self, n):
        self.obs = np.zeros((n, 4), dtype=np.float32)
        self.rng = np.random.default_rng(11)

    def step(self, action):
        noise = self.rng.normal(size=self.obs.shape).astype(np.float32)
        self.obs = np.clip(0.8 * self.obs + 0.3 * noise + 0.1 * action[:, None], -2, 2).astype(np.float32)
        return self.obs, self.obs.sum(1)

    def state_dict(self):
        return {"obs": self.obs, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.obs = state["obs"]
        self.rng.bit_generator.state = state["rng"]


envs = Envs(4)
agent = nn.ModuleDict({"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)})
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
num_updates, length = 12, 6

with holdfast.Run(RUN, every="2 steps", agent=agent, optimizer=optimizer, envs=envs) as run:
    for update in run.steps(num_updates):
        optimizer.param_groups[0]["lr"] = (1.0 - update / num_updates) * 2.5e-3
        obs, actions, logprobs, rewards = [], [], [], []
        for _ in range(length):
            seen = torch.from_numpy(envs.obs.copy())
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=agent["actor"](seen))
                action = policy.sample()
            _, reward = envs.step(action.numpy())
            obs.append(seen)
            actions.append(action)
            logprobs.append(policy.log_prob(action))
            rewards.append(torch.from_numpy(reward))
        b_obs, b_act, b_log, b_rew = map(torch.cat, (obs, actions, logprobs, rewards))
        b_inds = np.arange(len(b_obs))
        for _ in range(2):
            np.random.shuffle(b_inds)
            for start in range(0, len(b_obs), 8):
                mb = b_inds[start : start + 8]
                policy = torch.distributions.Categorical(logits=agent["actor"](b_obs[mb]))
                ratio = (policy.log_prob(b_act[mb]) - b_log[mb]).exp()
                value = agent["critic"](b_obs[mb])[:, 0]
                advantage = (b_rew[mb] - value).detach()
                pg = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                loss = pg + 0.5 * ((value - b_rew[mb]) ** 2).mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        record(run.step, loss)
        run.end_step(loss=loss)
