"""Trains a two-layer CNN with random crops, flips and dropout on handwritten digits; says every loss to
the bit.

Run as a script by the kill tests: `train_digits.py FOLDER EPOCHS WORKERS`. The images are the first 384 of
the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998; CC BY 4.0), four bits
per pixel.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast

BATCH = 32


class Digits(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self) -> None:
        with np.load(Path(__file__).with_name("handwritten_digits.npz")) as file:
            packed, labels = file["pixels"], file["labels"]
        pixels = np.stack([packed >> 4, packed & 15], axis=2).reshape(-1, 1, 8, 8)
        self._images = torch.from_numpy(pixels).float() / 15
        self._labels = labels.astype(int)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        padded = nn.functional.pad(self._images[index], (1, 1, 1, 1))
        top, left = np.random.randint(0, 3, 2)
        image = padded[:, top : top + 8, left : left + 8]
        if random.random() < 0.5:
            image = image.flip(2)
        return image + 0.05 * torch.randn(image.shape), int(self._labels[index])


def main(folder: str, epochs: int, workers: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(128, 10)
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(Digits(), BATCH, shuffle=True, num_workers=workers)
    checked = DataLoader(Digits(), 64)
    with holdfast.Run(
        folder, model=model, optimizer=optimizer, every="3 steps", seed=5, audit_data=True, mtbf="1 h"
    ) as run:
        for _ in run.epochs(epochs):
            model.train()
            for images, labels in run.batches(loader, name="train"):
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                print("step", run.step, loss.item().hex(), flush=True)
                run.end_step(loss=loss)
            model.eval()
            with torch.no_grad():
                right = sum(
                    int((model(x).argmax(1) == y).sum()) for x, y in run.batches(checked, name="valid")
                )
            print("right", run.epoch, right, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
