"""Trains a small network on handwritten digits with PyTorch's training loop; Treadle computes the forward and backward passes."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import treadle.torch

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
model = treadle.torch.Module(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(3):
    model.train()
    for batch in torch.randperm(1500).split(64):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).double().mean().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.3f}")

print(treadle.torch.explain(model))
