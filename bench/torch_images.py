#!/usr/bin/env python3
"""Writes tests/kernels/fixtures/images.txt: convolutions, pools and batch norms with their gradients, by PyTorch.

    python3 bench/torch_images.py > tests/kernels/fixtures/images.txt

Operands are float32, results float64. `gradient X` is that of the sum of y times `dy` with respect to X.
"""

import torch
import torch.nn.functional as F

torch.manual_seed(1)


def numbers(values):
    return " ".join(f"{v:.9g}" for v in values)


def case(name, settings, function, operands):
    operands = {k: v.float().double().requires_grad_() for k, v in operands.items()}
    y = function(**operands)
    dy = torch.randn_like(y).float().double()
    gradients = torch.autograd.grad((y * dy).sum(), list(operands.values()))
    print(f"case {name}")
    for key, values in settings.items():
        print("setting", key, numbers(values))
    tensors = {**{f"operand {k}": v for k, v in operands.items()}, "dy dy": dy, "result y": y,
               **{f"gradient {k}": g for k, g in zip(operands, gradients)}}
    for key, tensor in tensors.items():
        print(key, len(tensor.shape), numbers(tensor.shape), numbers(tensor.detach().flatten().tolist()))


def conv(x, w, strides, padding, dilation, groups=1):
    function = F.conv2d if len(x) == 4 else F.conv1d
    both = [p for p in padding for _ in range(2)]
    case("conv", {"strides": strides, "padding": both, "dilation": dilation, "groups": [groups]},
         lambda x, w: function(x, w, stride=strides, padding=padding, dilation=dilation, groups=groups),
         {"x": torch.randn(x), "w": torch.randn(w)})


def pool(op, x, size, strides, padding, **more):
    functions = {("max_pool", 2): F.max_pool2d, ("max_pool", 1): F.max_pool1d,
                 ("average_pool", 2): F.avg_pool2d, ("average_pool", 1): F.avg_pool1d}
    both = [p for p in padding for _ in range(2)]
    settings = {"size": size, "strides": strides, "padding": both}
    if more:
        settings["counts_padding"] = [int(more["count_include_pad"])]
    case(op, settings, lambda x: functions[op, len(size)](x, size, strides, padding, **more), {"x": torch.randn(x)})


def batch_norm(x, epsilon):
    case("batch_norm", {"epsilon": [epsilon]},
         lambda x, gain, bias: F.batch_norm(x, None, None, gain, bias, training=True, eps=epsilon),
         {"x": torch.randn(x) * 2 + 3, "gain": torch.randn(x[1]), "bias": torch.randn(x[1])})


conv([2, 3, 9], [4, 3, 3], [1], [1], [1])
conv([1, 4, 11], [6, 2, 3], [2], [2], [2], 2)
conv([2, 3, 7, 6], [4, 3, 3, 3], [1, 1], [1, 1], [1, 1])
conv([1, 2, 9, 8], [3, 2, 3, 2], [2, 1], [1, 0], [1, 2])
conv([1, 4, 6, 7], [4, 1, 3, 3], [1, 2], [1, 1], [1, 1], 4)
conv([2, 5, 5, 4], [3, 5, 1, 1], [2, 2], [0, 0], [1, 1])
pool("max_pool", [2, 3, 9], [3], [2], [1])
pool("max_pool", [1, 2, 7, 8], [3, 2], [2, 2], [1, 0])
for counts in (False, True):
    pool("average_pool", [2, 2, 9], [3], [2], [1], count_include_pad=counts)
    pool("average_pool", [1, 2, 7, 6], [3, 3], [2, 1], [1, 1], count_include_pad=counts)
batch_norm([5, 3], 1e-5)
batch_norm([3, 2, 7], 1e-3)
batch_norm([2, 3, 4, 5], 1e-5)
