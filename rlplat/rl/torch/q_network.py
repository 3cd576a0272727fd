"""`QNetwork`: encoder, core, and heads that give Q-values or distributions of returns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.errors import UsageError
from rlplat.rl.class_path import load_class
from rlplat.rl.policies.framework_check import require_known_state, require_q_shapes
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.torch.cores import make_core
from rlplat.rl.torch.encoders import TensorObs, initialize_orthogonally, make_encoder
from rlplat.rl.torch.network_check import constant_buffers, own_class, sample_obs, size_lazy_layers


class QNetwork(nn.Module):
    """The class to extend for a network of one's own (policy.custom): its constructor takes the same arguments.

        outputs, state = network(obs, state, starts)

    obs: [N, ...] (or a dict of such), N = T*B rows, time first; state: float32[B, S] before the first step, None for
    the state in which episodes begin; starts: bool[T, B]. outputs: float32[N, A, Z], Z = 1: Q-values; C51: logits of Z
    atoms; QR: Z quantiles. `q_values(outputs)`: float32[N, A].
    """

    support: Tensor
    """float32[Z]: C51's atoms."""

    def __init__(self, spec: PolicySpec, q: QSpec, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec, self.q = spec, q
        self.encoder = make_encoder(spec, compute_dtype)
        num_features = int(self.encoder.num_features)
        self.core = make_core(spec, num_features)
        self.state_size = 0
        if self.core is not None:
            num_features, self.state_size = self.core.num_features, self.core.state_size
        self.advantage_head = _Head(num_features, spec.action.n * q.num_outputs, q)
        self.value_head = _Head(num_features, q.num_outputs, q) if q.dueling else None
        if q.distributional == "c51":
            self.register_buffer("support", torch.from_numpy(q.support()), persistent=False)
        if spec.orthogonal_init:
            self._initialize_orthogonally()

    def forward(
        self, obs: TensorObs, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        features = self.encoder(obs)
        if state is None:
            num_envs = features.shape[0] if starts is None else starts.shape[1]
            state = features.new_zeros(num_envs, self.state_size)
        if self.core is not None:
            features, state = self.core(features, state, starts)
        if self.value_head is not None and self.training and features.requires_grad:
            features.register_hook(_rescaled_gradient)
        outputs = self.advantage_head(features).view(-1, self.spec.action.n, self.q.num_outputs)
        if self.value_head is not None:
            outputs = outputs - outputs.mean(dim=1, keepdim=True) + self.value_head(features).unsqueeze(1)
        return outputs, state

    def q_values(self, outputs: Tensor) -> Tensor:
        """float32[N, A, Z] -> float32[N, A]: expected returns."""
        if self.q.distributional == "c51":
            return (outputs.softmax(dim=-1) * self.support).sum(dim=-1)
        return outputs.mean(dim=-1) if self.q.num_outputs > 1 else outputs.squeeze(-1)

    def draw_noise(self, generator: torch.Generator) -> None:
        """New noise in the noisy layers, for all rows until the next call; there is none before the first."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.draw_noise(generator)

    @property
    def noise_size(self) -> int:
        """Numbers of noise that all noisy layers take; 0 without."""
        layers = [module for module in self.modules() if isinstance(module, NoisyLinear)]
        return sum(sum(layer.weight.shape) for layer in layers)

    def use_noise(self, noise: Tensor) -> None:
        """noise: float32[N, noise_size], standard normal: other noise for each row, until `clear_noise`."""
        start = 0
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                size = sum(module.weight.shape)
                module.use_noise(noise[:, start : start + size])
                start += size

    def clear_noise(self) -> None:
        """Mean weights from now on."""
        for module in self.modules():
            if isinstance(module, NoisyLinear):
                module.clear_noise()

    def _initialize_orthogonally(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                initialize_orthogonally(module, math.sqrt(2.0), keeps=":" in self.spec.encoder)


def _rescaled_gradient(gradient: Tensor) -> Tensor:
    """Both streams of a dueling network send gradients into the encoder: Wang et al. 2016, section 4.2."""
    return gradient / math.sqrt(2.0)


class _Head(nn.Module):
    """A linear layer, or two with a ReLU between them."""

    def __init__(self, num_inputs: int, num_outputs: int, q: QSpec) -> None:
        super().__init__()
        self.hidden: nn.Module | None = None
        if q.head_hidden_size:
            self.hidden = _linear(num_inputs, q.head_hidden_size, q)
            num_inputs = q.head_hidden_size
        self.out = _linear(num_inputs, num_outputs, q)

    def forward(self, features: Tensor) -> Tensor:
        if self.hidden is not None:
            features = torch.relu(self.hidden(features))
        outputs: Tensor = self.out(features)
        return outputs


class NoisyLinear(nn.Module):
    """y = (W + sigma_W * f(e_out) f(e_in)^T) x + b + sigma_b * f(e_out), f(e) = sgn(e) sqrt|e| (Fortunato et al. 2018,
    section 3b, initialised as there: uniform in +-1/sqrt(inputs), sigma = sigma_0 / sqrt(inputs))."""

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_inputs)
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), sigma * bound))
        self._noise: tuple[Tensor, Tensor] | None = None

    def draw_noise(self, generator: torch.Generator) -> None:
        num_outputs, num_inputs = self.weight.shape
        # Drawn on the CPU: the same numbers on every device.
        self.use_noise(torch.randn(num_outputs + num_inputs, generator=generator).to(self.weight.device))

    def use_noise(self, noise: Tensor) -> None:
        """noise: float32[outputs + inputs] for all rows, or [N, outputs + inputs]."""
        num_outputs = self.weight.shape[0]
        noise = noise.sign() * noise.abs().sqrt()
        self._noise = noise[..., :num_outputs], noise[..., num_outputs:]

    def clear_noise(self) -> None:
        self._noise = None

    def forward(self, features: Tensor) -> Tensor:
        if self._noise is None:
            return F.linear(features, self.weight, self.bias)
        noise_out, noise_in = self._noise
        if noise_out.ndim == 2:  # W_n x = W x + f(e_out) * sigma_W (f(e_in) * x), without a matrix for each row
            noisy = F.linear(features * noise_in, self.weight_sigma) + self.bias_sigma
            return F.linear(features, self.weight, self.bias) + noise_out * noisy
        weight = self.weight + self.weight_sigma * torch.outer(noise_out, noise_in)
        return F.linear(features, weight, self.bias + self.bias_sigma * noise_out)


def _linear(num_inputs: int, num_outputs: int, q: QSpec) -> nn.Module:
    return NoisyLinear(num_inputs, num_outputs, q.noisy_sigma) if q.noisy else nn.Linear(num_inputs, num_outputs)


def make_q_network(spec: PolicySpec, q: QSpec, compute_dtype: torch.dtype = torch.float32) -> QNetwork:
    """The network of a spec: `QNetwork`, or the class that `spec.custom` names ("pkg.mod:Class")."""
    network_class = load_class(spec.custom) if spec.custom else QNetwork
    if not (isinstance(network_class, type) and issubclass(network_class, QNetwork)):
        raise UsageError(
            f"policy.custom={spec.custom} is not a network for DQN: extend rlplat.rl.torch.q_network.QNetwork (an "
            "ActorCritic is for PPO and A3C)"
        )
    network: QNetwork = network_class(spec, q, compute_dtype)
    size_lazy_layers(network, spec)
    return network


def check_q_network(network: QNetwork, device: torch.device) -> None:
    """Raises UsageError where a network of the user's own does not keep the promises of `QNetwork.forward`."""
    spec = network.spec
    own = own_class(spec)
    if not own:
        return
    require_known_state(own, network)
    num_rows = 3
    with constant_buffers(own, network):
        outputs, state = network(sample_obs(spec, num_rows, device))
    require_q_shapes(own, network, num_rows, outputs, state)
