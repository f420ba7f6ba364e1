"""The models of TicTac's Table 1, and Caramel's ResNet-152 v2, in torch, as TF-slim builds them without `arg_scope`.

Without one a convolution has weights, biases and a ReLU, and no batch normalisation; only the pre-activation norms of
ResNet v2 are explicit, and have an offset and no scale. Written from the published architectures and from the names
and sizes of the variables (tests/graphs/slim_variables.json), which the parameters here must equal; no code is copied.

Where a model leaves a choice:

- Images of ResNets have 56 pixels after the first pooling, as published. TF-slim's default pooling without an
  `arg_scope` has no padding, and would leave 55.
- TF pads "SAME" at the far end; here padding is symmetric or the size is rounded up. Sizes are equal.
- The loss is the cross entropy of the logits; Inception v3 adds 0.4 of its auxiliary head's, as published.
- No weight decay, and no moving averages: workers do not receive them, and gradients do not need them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

CLASSES = 1000
AUXILIARY_WEIGHT = 0.4
KEPT_BY_DROPOUT = {"AlexNet": 0.5, "VGG": 0.5, "Inception": 0.8}


@dataclass
class Output:
    """Result of a forward pass.

    Attributes:
        loss: loss of the mini-batch.
        logits: shape (batch, classes).
    """

    loss: Tensor
    logits: Tensor


class Slim(nn.Module):
    """A model that creates its variables when a first pass over shapes requests them, in this order.

    Args:
        body: images, shape (batch, 3, size, size) -> logits, and an auxiliary head's or None.
        size: pixels on a side.
    """

    def __init__(self, body: "Callable[[Slim, Tensor], tuple[Tensor, Tensor | None]]", size: int) -> None:
        super().__init__()
        self.body, self.size = body, size
        self.is_built = False
        with torch.device("meta"):
            self.forward(*self.inputs(2))
        self.is_built = True

    def inputs(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return images and labels without values."""
        images = torch.empty(batch, 3, self.size, self.size, device="meta")
        return images, torch.empty(batch, dtype=torch.int64, device="meta")

    def forward(self, images: Tensor, labels: Tensor) -> Output:
        """Return loss and logits."""
        logits, auxiliary = self.body(self, images)
        loss = F.cross_entropy(logits, labels)
        if auxiliary is not None:
            loss = loss + AUXILIARY_WEIGHT * F.cross_entropy(auxiliary, labels)
        return Output(loss, logits)

    def variable(self, name: str, *shape: int) -> Tensor:
        """Return a parameter; while the model is being built, create it."""
        if not self.is_built:
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        found: Tensor = getattr(self, name)
        assert found.shape == shape, (name, found.shape, shape)
        return found

    def conv(
        self,
        name: str,
        x: Tensor,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        valid: bool = False,
        relu: bool = True,
    ) -> Tensor:
        """Apply a convolution with biases, padded to `size / stride` pixels unless `valid`, and a ReLU."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        weights = self.variable(f"{name}/weights", channels, x.shape[1], height, width)
        biases = self.variable(f"{name}/biases", channels)
        y = F.conv2d(x, weights, biases, stride, 0 if valid else (height // 2, width // 2))
        return F.relu(y) if relu else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Apply batch normalisation with an offset, by the statistics of the mini-batch, and a ReLU."""
        beta = self.variable(f"{name}/beta", x.shape[1])
        return F.relu(F.batch_norm(x, None, None, None, beta, training=True))


def _pool(x: Tensor, kernel: int = 3, stride: int = 2) -> Tensor:
    """Apply max pooling to `size / stride` pixels, rounded up."""
    if stride == 1:
        return F.max_pool2d(x, kernel, 1, kernel // 2)
    return F.max_pool2d(x, kernel, stride, ceil_mode=True)


def _average(x: Tensor) -> Tensor:
    """Apply 3x3 average pooling of the same size, over the pixels inside the image."""
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def _dropout(x: Tensor, model: str) -> Tensor:
    return F.dropout(x, 1 - KEPT_BY_DROPOUT[model])


def _alexnet_v2(net: Slim, x: Tensor) -> tuple[Tensor, None]:
    """Krizhevsky, «One weird trick for parallelizing convolutional neural networks», 2014."""
    x = _valid_pool(net.conv("conv1", x, 64, 11, 4, valid=True))
    x = _valid_pool(net.conv("conv2", x, 192, 5))
    x = net.conv("conv3", x, 384, 3)
    x = net.conv("conv4", x, 384, 3)
    x = _valid_pool(net.conv("conv5", x, 256, 3))
    return _fully_connected(net, x, "AlexNet"), None


def _vgg(net: Slim, x: Tensor, *, depths: tuple[int, ...]) -> tuple[Tensor, None]:
    """Simonyan & Zisserman, «Very deep convolutional networks for large-scale image recognition», 2014."""
    for block, (depth, channels) in enumerate(zip(depths, (64, 128, 256, 512, 512), strict=True), 1):
        for index in range(1, depth + 1):
            x = net.conv(f"conv{block}/conv{block}_{index}", x, channels, 3)
        x = F.max_pool2d(x, 2)
    return _fully_connected(net, x, "VGG"), None


def _fully_connected(net: Slim, x: Tensor, model: str) -> Tensor:
    """Apply three fully connected layers as convolutions; the first covers the whole remaining image."""
    x = _dropout(net.conv("fc6", x, 4096, x.shape[2], valid=True), model)
    x = _dropout(net.conv("fc7", x, 4096, 1), model)
    return net.conv("fc8", x, CLASSES, 1, relu=False).flatten(1)


def _valid_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2)


def _inception_v1(net: Slim, x: Tensor) -> tuple[Tensor, None]:
    """Szegedy et al., «Going deeper with convolutions», 2014, without auxiliary heads."""
    modules = {
        "3b": (64, 96, 128, 16, 32, 32), "3c": (128, 128, 192, 32, 96, 64), "4b": (192, 96, 208, 16, 48, 64),
        "4c": (160, 112, 224, 24, 64, 64), "4d": (128, 128, 256, 24, 64, 64), "4e": (112, 144, 288, 32, 64, 64),
        "4f": (256, 160, 320, 32, 128, 128), "5b": (256, 160, 320, 32, 128, 128), "5c": (384, 192, 384, 48, 128, 128),
    }  # fmt: skip
    x = _pool(net.conv("Conv2d_1a_7x7", x, 64, 7, 2))
    x = net.conv("Conv2d_2b_1x1", x, 64, 1)
    x = _pool(net.conv("Conv2d_2c_3x3", x, 192, 3))
    for stage, (c0, c1a, c1b, c2a, c2b, c3) in modules.items():
        if stage == "4b":
            x = _pool(x)
        elif stage == "5b":
            x = F.max_pool2d(x, 2)
        name = f"Mixed_{stage}"
        x = torch.cat(
            [
                net.conv(f"{name}/B0/1x1", x, c0, 1),
                net.conv(f"{name}/B1/3x3", net.conv(f"{name}/B1/1x1", x, c1a, 1), c1b, 3),
                net.conv(f"{name}/B2/3x3", net.conv(f"{name}/B2/1x1", x, c2a, 1), c2b, 3),
                net.conv(f"{name}/B3/1x1", _pool(x, 3, 1), c3, 1),
            ],
            1,
        )
    return _logits(net, _dropout(F.avg_pool2d(x, 7), "Inception")), None


def _inception_v2(net: Slim, x: Tensor) -> tuple[Tensor, None]:
    """Ioffe & Szegedy, «Batch normalization», 2015; its first convolution is separable, with 8 filters a channel."""
    modules = {
        "3b": (64, 64, 64, 64, 96, 32), "3c": (64, 64, 96, 64, 96, 64), "4a": (128, 160, 64, 96),
        "4b": (224, 64, 96, 96, 128, 128), "4c": (192, 96, 128, 96, 128, 128), "4d": (160, 128, 160, 128, 160, 96),
        "4e": (96, 128, 192, 160, 192, 96), "5a": (128, 192, 192, 256), "5b": (352, 192, 320, 160, 224, 128),
        "5c": (352, 192, 320, 192, 224, 128),
    }  # fmt: skip
    depthwise = net.variable("Conv2d_1a_7x7/depthwise_weights", 8 * 3, 1, 7, 7)
    pointwise = net.variable("Conv2d_1a_7x7/pointwise_weights", 64, 8 * 3, 1, 1)
    biases = net.variable("Conv2d_1a_7x7/biases", 64)
    x = F.relu(F.conv2d(F.conv2d(x, depthwise, None, 2, 3, groups=3), pointwise, biases))
    x = net.conv("Conv2d_2b_1x1", _pool(x), 64, 1)
    x = _pool(net.conv("Conv2d_2c_3x3", x, 192, 3))
    for stage, channels in modules.items():
        name = f"Mixed_{stage}"
        conv = partial(_within, net, name)
        if len(channels) == 4:
            c0a, c0b, c1a, c1b = channels
            b0 = conv("B0b", conv("B0a", x, c0a, 1), c0b, 3, 2)
            b1 = conv("B1c", conv("B1b", conv("B1a", x, c1a, 1), c1b, 3), c1b, 3, 2)
            x = torch.cat([b0, b1, _pool(x)], 1)
            continue
        c0, c1a, c1b, c2a, c2b, c3 = channels
        b0 = conv("B0", x, c0, 1)
        b1 = conv("B1b", conv("B1a", x, c1a, 1), c1b, 3)
        b2 = conv("B2c", conv("B2b", conv("B2a", x, c2a, 1), c2b, 3), c2b, 3)
        b3 = conv("B3", _pool(x, 3, 1) if stage == "5c" else _average(x), c3, 1)
        x = torch.cat([b0, b1, b2, b3], 1)
    return _logits(net, _dropout(F.avg_pool2d(x, 7), "Inception")), None


def _inception_v3(net: Slim, x: Tensor) -> tuple[Tensor, Tensor]:
    """Szegedy et al., «Rethinking the Inception architecture for computer vision», 2015, with its auxiliary head."""
    x = net.conv("1a", x, 32, 3, 2, valid=True)
    x = net.conv("2a", x, 32, 3, valid=True)
    x = _valid_pool(net.conv("2b", x, 64, 3))
    x = net.conv("3b", x, 80, 1)
    x = _valid_pool(net.conv("4a", x, 192, 3, valid=True))
    for stage, pooled in (("5b", 32), ("5c", 64), ("5d", 64)):
        conv = partial(_within, net, f"Mixed_{stage}")
        b0 = conv("B0", x, 64, 1)
        b1 = conv("B1b", conv("B1a", x, 48, 1), 64, 5)
        b2 = conv("B2c", conv("B2b", conv("B2a", x, 64, 1), 96, 3), 96, 3)
        x = torch.cat([b0, b1, b2, conv("B3", _average(x), pooled, 1)], 1)
    conv = partial(_within, net, "Mixed_6a")
    b0 = conv("B0", x, 384, 3, 2, valid=True)
    b1 = conv("B1c", conv("B1b", conv("B1a", x, 64, 1), 96, 3), 96, 3, 2, valid=True)
    x = torch.cat([b0, b1, _valid_pool(x)], 1)
    for stage, narrow in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        conv = partial(_within, net, f"Mixed_{stage}")
        b0 = conv("B0", x, 192, 1)
        b1 = conv("B1c", conv("B1b", conv("B1a", x, narrow, 1), narrow, (1, 7)), 192, (7, 1))
        b2 = conv("B2c", conv("B2b", conv("B2a", x, narrow, 1), narrow, (7, 1)), narrow, (1, 7))
        b2 = conv("B2e", conv("B2d", b2, narrow, (7, 1)), 192, (1, 7))
        x = torch.cat([b0, b1, b2, conv("B3", _average(x), 192, 1)], 1)
    conv = partial(_within, net, "AuxLogits")
    auxiliary = conv("2a", conv("1b", F.avg_pool2d(x, 5, 3), 128, 1), 768, 5, valid=True)
    auxiliary = conv("2b", auxiliary, CLASSES, 1, relu=False).flatten(1)
    conv = partial(_within, net, "Mixed_7a")
    b0 = conv("B0b", conv("B0a", x, 192, 1), 320, 3, 2, valid=True)
    b1 = conv("B1c", conv("B1b", conv("B1a", x, 192, 1), 192, (1, 7)), 192, (7, 1))
    x = torch.cat([b0, conv("B1d", b1, 192, 3, 2, valid=True), _valid_pool(x)], 1)
    for stage in ("7b", "7c"):
        conv = partial(_within, net, f"Mixed_{stage}")
        b0, b1 = conv("B0", x, 320, 1), conv("B1a", x, 384, 1)
        b1 = torch.cat([conv("B1b", b1, 384, (1, 3)), conv("B1c", b1, 384, (3, 1))], 1)
        b2 = conv("B2b", conv("B2a", x, 448, 1), 384, 3)
        b2 = torch.cat([conv("B2c", b2, 384, (1, 3)), conv("B2d", b2, 384, (3, 1))], 1)
        x = torch.cat([b0, b1, b2, conv("B3", _average(x), 192, 1)], 1)
    return _logits(net, _dropout(F.avg_pool2d(x, 8), "Inception")), auxiliary


def _within(net: Slim, module: str, name: str, *args: Any, **kwargs: Any) -> Tensor:
    return net.conv(f"{module}/{name}", *args, **kwargs)


def _logits(net: Slim, x: Tensor, name: str = "Logits") -> Tensor:
    return net.conv(name, x, CLASSES, 1, relu=False).flatten(1)


def _resnet_v1(net: Slim, x: Tensor, *, depths: tuple[int, ...]) -> tuple[Tensor, None]:
    """He et al., «Deep residual learning for image recognition», 2015."""
    x = _pool(net.conv("conv1", x, 64, 7, 2))
    for name, narrow, stride in _units(depths):
        wide = 4 * narrow
        if x.shape[1] == wide:
            shortcut = _pool(x, 1, stride) if stride > 1 else x
        else:
            shortcut = net.conv(f"{name}/shortcut", x, wide, 1, stride, relu=False)
        y = net.conv(f"{name}/conv2", net.conv(f"{name}/conv1", x, narrow, 1), narrow, 3, stride)
        x = F.relu(shortcut + net.conv(f"{name}/conv3", y, wide, 1, relu=False))
    return _logits(net, x.mean((2, 3), keepdim=True), "logits"), None


def _resnet_v2(net: Slim, x: Tensor, *, depths: tuple[int, ...]) -> tuple[Tensor, None]:
    """He et al., «Identity mappings in deep residual networks», 2016."""
    x = _pool(net.conv("conv1", x, 64, 7, 2, relu=False))
    for name, narrow, stride in _units(depths):
        wide = 4 * narrow
        y = net.norm(f"{name}/preact", x)
        if x.shape[1] == wide:
            shortcut = _pool(x, 1, stride) if stride > 1 else x
        else:
            shortcut = net.conv(f"{name}/shortcut", y, wide, 1, stride, relu=False)
        y = net.conv(f"{name}/conv2", net.conv(f"{name}/conv1", y, narrow, 1), narrow, 3, stride)
        x = shortcut + net.conv(f"{name}/conv3", y, wide, 1, relu=False)
    return _logits(net, net.norm("postnorm", x).mean((2, 3), keepdim=True), "logits"), None


def _units(depths: tuple[int, ...]) -> list[tuple[str, int, int]]:
    """Yield name, narrow channels and stride of each unit; the last unit of each block except the last has stride 2."""
    return [
        (f"block{block}/unit_{unit}", 64 << (block - 1), 2 if unit == depth and block < len(depths) else 1)
        for block, depth in enumerate(depths, 1)
        for unit in range(1, depth + 1)
    ]


DEPTHS_OF_RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

MODELS: dict[str, Callable[[], Slim]] = {
    "tictac_alexnet_v2": lambda: Slim(_alexnet_v2, 224),
    "tictac_inception_v1": lambda: Slim(_inception_v1, 224),
    "tictac_inception_v2": lambda: Slim(_inception_v2, 224),
    "tictac_inception_v3": lambda: Slim(_inception_v3, 299),
    "tictac_resnet50_v1": lambda: Slim(partial(_resnet_v1, depths=DEPTHS_OF_RESNETS[50]), 224),
    "tictac_resnet101_v1": lambda: Slim(partial(_resnet_v1, depths=DEPTHS_OF_RESNETS[101]), 224),
    "tictac_resnet50_v2": lambda: Slim(partial(_resnet_v2, depths=DEPTHS_OF_RESNETS[50]), 224),
    "tictac_resnet101_v2": lambda: Slim(partial(_resnet_v2, depths=DEPTHS_OF_RESNETS[101]), 224),
    "tictac_vgg16": lambda: Slim(partial(_vgg, depths=(2, 2, 3, 3, 3)), 224),
    "tictac_vgg19": lambda: Slim(partial(_vgg, depths=(2, 2, 4, 4, 4)), 224),
    "caramel_resnet152_v2": lambda: Slim(partial(_resnet_v2, depths=DEPTHS_OF_RESNETS[152]), 224),
}
