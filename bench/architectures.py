"""Small definitions of well-known architectures, with random weights, for bench/models.py.

Each entry of ARCHITECTURES makes a torch module in evaluation mode and example inputs. Weights and statistics are random but such that
activations neither vanish nor explode, so that errors can be compared.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def conv_bn(inputs, outputs, kernel, stride=1, groups=1, act=nn.ReLU, dilation=1):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2 * dilation, groups=groups, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, act()) if act else nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, body, shortcut=None, act=None):
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut or nn.Identity(), act or nn.Identity()

    def forward(self, x):
        return self.act(self.body(x) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed, act=nn.ReLU, gate=nn.Sigmoid):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x):
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


def head(channels, classes=1000):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def resnet(blocks, bottleneck):
    layers, inputs = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            outputs = width * 4 if bottleneck else width
            if bottleneck:
                body = [conv_bn(inputs, width, 1), conv_bn(width, width, 3, stride), conv_bn(width, outputs, 1, act=None)]
            else:
                body = [conv_bn(inputs, width, 3, stride), conv_bn(width, width, 3, act=None)]
            shortcut = conv_bn(inputs, outputs, 1, stride, act=None) if stride != 1 or inputs != outputs else None
            layers.append(Residual(nn.Sequential(*body), shortcut, nn.ReLU()))
            inputs = outputs
    return nn.Sequential(*layers, head(inputs))


def vgg(config=(64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")):
    layers, inputs = [], 3
    for item in config:
        if item == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, item, 3, padding=1), nn.ReLU()]
            inputs = item
    dense = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, *dense)


def repvgg_a0():
    layers, inputs = [nn.Conv2d(3, 48, 3, 2, 1), nn.ReLU()], 48
    for outputs, count in ((48, 2), (96, 4), (192, 14), (1280, 1)):
        for i in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, 2 if i == 0 else 1, 1), nn.ReLU()]
            inputs = outputs
    return nn.Sequential(*layers, head(inputs))


def mobilenet_v2():
    layers, inputs = [conv_bn(3, 32, 3, 2, act=nn.ReLU6)], 32
    for expand, outputs, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            s, hidden = stride if i == 0 else 1, inputs * expand
            body = [] if expand == 1 else [conv_bn(inputs, hidden, 1, act=nn.ReLU6)]
            body += [conv_bn(hidden, hidden, 3, s, hidden, nn.ReLU6), conv_bn(hidden, outputs, 1, act=None)]
            block = nn.Sequential(*body)
            layers.append(Residual(block) if s == 1 and inputs == outputs else block)
            inputs = outputs
    return nn.Sequential(*layers, conv_bn(inputs, 1280, 1, act=nn.ReLU6), head(1280))


def mobilenet_v3_like():
    layers, inputs = [conv_bn(3, 16, 3, 2, act=nn.Hardswish)], 16
    rows = ((3, 16, 16, 0, nn.ReLU, 2), (3, 72, 24, 0, nn.ReLU, 2), (3, 88, 24, 0, nn.ReLU, 1), (5, 96, 40, 1, nn.Hardswish, 2), (5, 240, 40, 1, nn.Hardswish, 1),
            (5, 120, 48, 1, nn.Hardswish, 1), (5, 144, 48, 1, nn.Hardswish, 1), (5, 288, 96, 1, nn.Hardswish, 2), (5, 576, 96, 1, nn.Hardswish, 1))
    for kernel, hidden, outputs, se, act, stride in rows:
        body = [conv_bn(inputs, hidden, 1, act=act), conv_bn(hidden, hidden, kernel, stride, hidden, act)]
        if se:
            body.append(SqueezeExcite(hidden, hidden // 4 // 8 * 8 or 8, gate=nn.Hardsigmoid))
        block = nn.Sequential(*body, conv_bn(hidden, outputs, 1, act=None))
        layers.append(Residual(block) if stride == 1 and inputs == outputs else block)
        inputs = outputs
    return nn.Sequential(*layers, conv_bn(inputs, 576, 1, act=nn.Hardswish), head(576))


def efficientnet_b0():
    layers, inputs = [conv_bn(3, 32, 3, 2, act=nn.SiLU)], 32
    for expand, outputs, count, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):
        for i in range(count):
            s, hidden = stride if i == 0 else 1, inputs * expand
            body = [] if expand == 1 else [conv_bn(inputs, hidden, 1, act=nn.SiLU)]
            body += [conv_bn(hidden, hidden, kernel, s, hidden, nn.SiLU), SqueezeExcite(hidden, max(1, inputs // 4), nn.SiLU), conv_bn(hidden, outputs, 1, act=None)]
            block = nn.Sequential(*body)
            layers.append(Residual(block) if s == 1 and inputs == outputs else block)
            inputs = outputs
    return nn.Sequential(*layers, conv_bn(inputs, 1280, 1, act=nn.SiLU), head(1280))


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False), nn.BatchNorm2d(4 * growth), nn.ReLU(),
                                  nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False))

    def forward(self, x):
        return torch.cat((x, self.body(x)), 1)


def densenet121():
    layers, channels = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            layers.append(DenseLayer(channels, 32))
            channels += 32
        if stage < 3:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), head(channels))


class UNet(nn.Module):
    def __init__(self, widths=(24, 48, 96)):
        super().__init__()
        double = lambda i, o: nn.Sequential(conv_bn(i, o, 3), conv_bn(o, o, 3))
        self.down = nn.ModuleList(double(i, o) for i, o in zip((3, *widths[:-1]), widths))
        self.bottom = double(widths[-1], widths[-1] * 2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.merge = nn.ModuleList(double(2 * w, w) for w in reversed(widths))
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips)):
            x = merge(torch.cat((skip, up(x)), 1))
        return self.last(x)


def regnet_y002():
    layers, inputs = [conv_bn(3, 32, 3, 2)], 32
    for outputs, count in ((24, 1), (56, 1), (152, 4), (368, 7)):
        for i in range(count):
            stride = 2 if i == 0 else 1
            body = nn.Sequential(conv_bn(inputs, outputs, 1), conv_bn(outputs, outputs, 3, stride, outputs // 8), SqueezeExcite(outputs, max(1, inputs // 4)),
                                 conv_bn(outputs, outputs, 1, act=None))
            layers.append(Residual(body, conv_bn(inputs, outputs, 1, stride, act=None) if i == 0 else None, nn.ReLU()))
            inputs = outputs
    return nn.Sequential(*layers, head(inputs))


class ChannelNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).permute(0, 3, 1, 2)


def convnext_atto():
    widths, layers = (40, 80, 160, 320), [nn.Conv2d(3, 40, 4, 4), ChannelNorm(40)]
    for stage, (width, depth) in enumerate(zip(widths, (2, 2, 6, 2))):
        if stage > 0:
            layers += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(320), nn.Linear(320, 1000))


class GhostModule(nn.Module):
    def __init__(self, inputs, outputs, act=nn.ReLU):
        super().__init__()
        self.primary, self.cheap = conv_bn(inputs, outputs // 2, 1, act=act), conv_bn(outputs // 2, outputs // 2, 3, groups=outputs // 2, act=act)

    def forward(self, x):
        y = self.primary(x)
        return torch.cat((y, self.cheap(y)), 1)


def ghostnet():
    layers, inputs = [conv_bn(3, 16, 3, 2)], 16
    rows = ((3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 1, 2), (5, 120, 40, 1, 1), (3, 240, 80, 0, 2), (3, 200, 80, 0, 1), (3, 184, 80, 0, 1),
            (3, 184, 80, 0, 1), (3, 480, 112, 1, 1), (3, 672, 112, 1, 1), (5, 672, 160, 1, 2), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1), (5, 960, 160, 0, 1), (5, 960, 160, 1, 1))
    for kernel, hidden, outputs, se, stride in rows:
        body = [GhostModule(inputs, hidden)]
        if stride > 1:
            body.append(conv_bn(hidden, hidden, kernel, stride, hidden, None))
        if se:
            body.append(SqueezeExcite(hidden, hidden // 4, gate=nn.Hardsigmoid))
        body.append(GhostModule(hidden, outputs, None))
        shortcut = None if stride == 1 and inputs == outputs else nn.Sequential(conv_bn(inputs, inputs, kernel, stride, inputs, None), conv_bn(inputs, outputs, 1, act=None))
        layers.append(Residual(nn.Sequential(*body), shortcut))
        inputs = outputs
    return nn.Sequential(*layers, conv_bn(inputs, 960, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(960, 1280, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1280, 1000))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


class First(nn.Module):
    """Calls a recurrent network, and returns the sequence of its outputs without the final states."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)[0]


class Attention(nn.Module):
    four_axes = False  # true: uses no five-dimensional tensors, which some converters do not support

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        if self.four_axes:
            q, k, v = (part.reshape(n, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        else:
            q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))


class Transformer(nn.Module):
    """A pre-norm (ViT) or post-norm (BERT) encoder over embedded tokens."""

    def __init__(self, width, heads, layers, pre_norm, expansion=4, act=nn.GELU):
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, expansion * width), act(), nn.Linear(expansion * width, width)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))

    def forward(self, x):
        for i, (attention, mlp_) in enumerate(zip(self.attention, self.mlp)):
            first, second = self.norms[2 * i], self.norms[2 * i + 1]
            if self.pre_norm:
                x = x + attention(first(x))
                x = x + mlp_(second(x))
            else:
                x = first(x + attention(x))
                x = second(x + mlp_(x))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, width=192, heads=3, layers=12, patch=16, image=224):
        super().__init__()
        tokens = (image // patch) ** 2
        self.patches, self.token = nn.Conv2d(3, width, patch, patch), nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, tokens + 1, width) * 0.02)
        self.body, self.norm, self.head = Transformer(width, heads, layers, True), nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        return self.head(self.norm(self.body(x))[:, 0])


class MobileViTBlock(nn.Module):
    """A MobileViT block (Mehta and Rastegari 2021, figure 1): pixels at the same position of all 2x2 patches attend to each other."""

    def __init__(self, channels, width, layers):
        super().__init__()
        self.local = nn.Sequential(conv_bn(channels, channels, 3, act=nn.SiLU), nn.Conv2d(channels, width, 1, bias=False))
        self.body, self.norm = Transformer(width, 4, layers, True, 2, nn.SiLU), nn.LayerNorm(width)
        self.back, self.join = conv_bn(width, channels, 1, act=nn.SiLU), conv_bn(2 * channels, channels, 3, act=nn.SiLU)

    def forward(self, x):
        y = self.local(x)
        n, c, h, w = y.shape
        y = y.reshape(n * c * (h // 2), 2, w // 2, 2).transpose(1, 2).reshape(n, c, h * w // 4, 4).transpose(1, 3).reshape(n * 4, h * w // 4, c)
        y = self.norm(self.body(y))
        y = y.reshape(n, 4, h * w // 4, c).transpose(1, 3).reshape(n * c * (h // 2), w // 2, 2, 2).transpose(1, 2).reshape(n, c, h, w)
        return self.join(torch.cat((x, self.back(y)), 1))


def mobilevit_xxs():
    def inverted(inputs, outputs, stride=1):
        body = nn.Sequential(conv_bn(inputs, 2 * inputs, 1, act=nn.SiLU), conv_bn(2 * inputs, 2 * inputs, 3, stride, 2 * inputs, nn.SiLU), conv_bn(2 * inputs, outputs, 1, act=None))
        return Residual(body) if stride == 1 and inputs == outputs else body

    layers = [conv_bn(3, 16, 3, 2, act=nn.SiLU), inverted(16, 16), inverted(16, 24, 2), inverted(24, 24), inverted(24, 24)]
    for inputs, channels, width, depth in ((24, 48, 64, 2), (48, 64, 80, 4), (64, 80, 96, 3)):
        layers += [inverted(inputs, channels, 2), MobileViTBlock(channels, width, depth)]
    return nn.Sequential(*layers, conv_bn(80, 320, 1, act=nn.SiLU), head(320))


class Bert(nn.Module):
    def __init__(self, width, heads, layers, vocabulary=30522):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(1, 512, width) * 0.5)
        self.norm, self.body = nn.LayerNorm(width), Transformer(width, heads, layers, False)

    def forward(self, ids):
        return self.body(self.norm(self.words(ids) + self.positions[:, : ids.shape[1]]))


class Mixer(nn.Module):
    def __init__(self, width=512, tokens=49, layers=8):
        super().__init__()
        mlp_ = lambda n, hidden: nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.Linear(hidden, n))
        self.patches = nn.Conv2d(3, width, 32, 32)
        self.across = nn.ModuleList(mlp_(tokens, width // 2) for _ in range(layers))
        self.within = nn.ModuleList(mlp_(width, 4 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (across, within) in enumerate(zip(self.across, self.within)):
            x = x + across(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


def image(size=224):
    return lambda batch: torch.randn(batch, 3, size, size)


ARCHITECTURES = {
    "resnet18": (lambda: resnet((2, 2, 2, 2), False), image()),
    "vgg11": (vgg, image()),
    "repvgg_a0": (repvgg_a0, image()),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True), image()),
    "densenet121": (densenet121, image()),
    "unet": (UNet, image(160)),
    "mobilenet_v2": (mobilenet_v2, image()),
    "mobilenet_v3": (mobilenet_v3_like, image()),
    "efficientnet_b0": (efficientnet_b0, image()),
    "mobilevit_xxs": (mobilevit_xxs, image(256)),
    "regnet_y002": (regnet_y002, image()),
    "convnext_atto": (convnext_atto, image()),
    "ghostnet": (ghostnet, image()),
    "mlp": (mlp, lambda batch: torch.randn(batch, 784)),
    "lstm": (lambda: First(nn.LSTM(96, 160, 2, batch_first=True, bidirectional=True)), lambda batch: torch.randn(batch, 80, 96)),
    "gru": (lambda: First(nn.GRU(96, 160, 2, batch_first=True, bidirectional=True)), lambda batch: torch.randn(batch, 80, 96)),
    "vit_tiny": (VisionTransformer, image()),
    "mixer_s32": (Mixer, image()),
    "minilm6": (lambda: Bert(384, 12, 6), lambda batch: torch.randint(0, 30000, (batch, 128))),
    "bert_base": (lambda: Bert(768, 12, 12), lambda batch: torch.randint(0, 30000, (batch, 128))),
}


def make(name, batch=1):
    """Returns the module `name` with reproducible random weights, and its example input."""
    build, example = ARCHITECTURES[name]
    torch.manual_seed(0)
    module = build().eval()
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                fan_in = layer.weight[0].numel()
                layer.weight.normal_(0, (2.0 / fan_in) ** 0.5)
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.8, 1.2)
                layer.weight.uniform_(0.4, 0.9)
                layer.bias.normal_(0, 0.1)
    return module, example(batch)
