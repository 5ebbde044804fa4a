"""An EMA of the weights in a class of one's own, whose weights judge the model and shape its loss."""

import torch
from switch import RUN, holdfast, record
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def update(self, model):
        with torch.no_grad():
            for name, value in model.state_dict().items():
                self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = dict(state["shadow"])


def main():
    torch.manual_seed(7)
    loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 2)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ema = EMA(model, 0.9)
    with holdfast.Run(RUN, every="3 steps", model=model, optimizer=optimizer, ema=ema) as run:
        for _epoch in run.epochs(4):
            for x, y in run.batches(loader):
                averaged = torch.func.functional_call(model, ema.shadow, (x,)).detach()
                out = model(x)
                loss = nn.functional.mse_loss(out, y) + 0.1 * nn.functional.mse_loss(out, averaged)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ema.update(model)
                record(run.step, loss)
                run.end_step(loss=loss)


if __name__ == "__main__":
    main()
