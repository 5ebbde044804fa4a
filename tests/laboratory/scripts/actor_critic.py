"""SAC's three optimizers: actor, critic, and a temperature that is one bare number."""

import copy

import torch
from switch import RUN, holdfast, record
from torch import nn

torch.manual_seed(20)
actor = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
critic_target = copy.deepcopy(critic).requires_grad_(False)
temperature = nn.ParameterDict({"log_alpha": nn.Parameter(torch.zeros(()))})
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=3e-3)
alpha_opt = torch.optim.Adam(temperature.parameters(), lr=3e-2)

with holdfast.Run(
    RUN, every="3 steps", actor=actor, critic=critic, critic_target=critic_target, temperature=temperature,
    actor_opt=actor_opt, critic_opt=critic_opt, alpha_opt=alpha_opt,
) as run:  # fmt: skip
    for step in run.steps(24):
        obs, reward = torch.randn(16, 4), torch.randn(16, 1)
        alpha = temperature["log_alpha"].exp()
        with torch.no_grad():
            following = torch.cat([obs, actor(obs)], 1)
            goal = reward + 0.9 * (critic_target(following) + alpha)
        act = actor(obs)
        critic_loss = nn.functional.mse_loss(critic(torch.cat([obs, act.detach()], 1)), goal)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()
        if step % 2 == 0:
            actor_loss = (alpha.detach() * act.square() - critic(torch.cat([obs, act], 1))).mean()
            actor_opt.zero_grad()
            actor_loss.backward()
            actor_opt.step()
        alpha_loss = (temperature["log_alpha"].exp() * (act.detach().square().mean() - 0.5)).mean()
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        for ours, theirs in zip(critic_target.parameters(), critic.parameters(), strict=True):
            ours.data.mul_(0.95).add_(theirs.data, alpha=0.05)
        record(run.step, critic_loss + alpha_loss)
        run.end_step(loss=critic_loss)
