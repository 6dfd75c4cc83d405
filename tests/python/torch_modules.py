"""Small modules of well-known kinds, for the tests of treadle.torch."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet():
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), Block(8, 8, 1), Block(8, 16, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


class Inverted(nn.Module):
    """The inverted residual of MobileNetV2."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(),
            nn.Conv2d(hidden, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x)


def mobilenet():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Inverted(8, 24), Inverted(8, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class Vit(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])


class Gpt(nn.Module):
    """A language model with causal attention, whose output layer shares the embedding's weight."""

    def __init__(self, width=32, vocabulary=40):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(approximate="tanh"), nn.Linear(64, width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        n, t = ids.shape
        x = self.words(ids) + self.places(torch.arange(t))
        q, k, v = self.qkv(self.norm(x)).reshape(n, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, -1))
        return self.head(x + self.mlp(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.tags = nn.Embedding(40, 16), nn.LSTM(16, 12, batch_first=True, bidirectional=True), nn.Linear(24, 5)

    def forward(self, ids):
        return self.tags(self.lstm(self.words(ids))[0])


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        wide = F.relu(self.down(x))
        deep = F.relu(self.inner(F.max_pool2d(wide, 2)))
        return self.out(torch.cat([wide, self.up(deep)], 1))


def images(batch):
    return torch.randn(batch, 3, 16, 16)


def ids(batch):
    return torch.randint(0, 40, (batch, 7))


KINDS = {
    "resnet": (resnet, images),
    "mobilenet": (mobilenet, images),
    "vit": (Vit, images),
    "gpt": (Gpt, ids),
    "tagger": (Tagger, ids),
    "unet": (Unet, images),
}


@dataclasses.dataclass
class Scores:
    mean: torch.Tensor
    parts: dict
    note: str = "none"


class Nested(nn.Module):
    """A module that has inputs and outputs of all types that may contain tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch, *, scale=1.0, extra=None, pair=(None, None)):
        y = self.linear(batch["x"]) * scale
        if extra is not None:
            y = y + extra
        if pair[1] is not None:
            y = y * pair[1]
        return Scores(y.mean(1), {"all": [y, (y.argmax(1), None)], "shape": 4}, note="given")


class Branching(nn.Module):
    """A module with data-dependent control flow, which no exporter supports; its parts can be exported."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        y = self.body(x)
        return y * 2 if y.sum() > 0 else y - 1


class Counting(nn.Module):
    """A module that writes to its own buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Replacing(nn.Module):
    """A module that stores a tensor of each call in a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x):
        self.last = x + self.last
        return self.linear(x)
