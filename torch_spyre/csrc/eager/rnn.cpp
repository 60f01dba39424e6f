// Fused LSTM and GRU cells. PyTorch's recurrent layers call them on every accelerator, and the CPU
// has none, so the boxed path cannot serve them: the cell is computed here on host copies of its
// operands.
//
// The workspace holds the activated gates: (i, f, g, o) for LSTM; (r, z, n, hx, hidden part of n)
// for GRU.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hooks/copy.h"

namespace spyre {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor host(const Tensor& t) { return t.device().type() == kSpyre ? to_host(t) : t; }
Tensor host(const OptionalTensor& t) { return t && t->defined() ? host(*t) : Tensor(); }
Tensor plus(const Tensor& gates, const OptionalTensor& bias) {
  auto b = host(bias);
  return b.defined() ? gates + b : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  auto device = input_gates.device().index();
  auto gates =
      (plus(host(input_gates), input_bias) + plus(host(hidden_gates), hidden_bias)).chunk(4, 1);
  auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  auto cy = f * host(cx) + i * g;
  auto hy = o * cy.tanh();
  return {to_spyre(hy, device), to_spyre(cy, device), to_spyre(at::cat({i, f, g, o}, 1), device)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy_in,
                                                      const OptionalTensor& grad_cy_in,
                                                      const Tensor& cx_in, const Tensor& cy_in,
                                                      const Tensor& workspace, bool has_bias) {
  auto grad_hy = host(grad_hy_in), grad_cy = host(grad_cy_in);
  if (!grad_hy.defined() && !grad_cy.defined()) return {};
  auto device = workspace.device().index();
  auto gates = host(workspace).chunk(4, 1);
  auto i = gates[0], f = gates[1], g = gates[2], o = gates[3];
  auto cx = host(cx_in), tanh_cy = host(cy_in).tanh();
  auto grad_cell = grad_cy.defined() ? grad_cy : at::zeros_like(cx);
  auto grad_o = at::zeros_like(cx);
  if (grad_hy.defined()) {
    grad_cell = grad_cell + grad_hy * o * (1 - tanh_cy * tanh_cy);
    grad_o = grad_hy * tanh_cy;
  }
  auto grad_gates = at::cat({grad_cell * g * i * (1 - i), grad_cell * cx * f * (1 - f),
                             grad_cell * i * (1 - g * g), grad_o * o * (1 - o)},
                            1);
  auto grad_bias = has_bias ? to_spyre(grad_gates.sum(0), device) : Tensor();
  return {to_spyre(grad_gates, device), to_spyre(grad_cell * f, device), grad_bias};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx_in, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  auto device = input_gates.device().index();
  auto from_input = plus(host(input_gates), input_bias).chunk(3, 1);
  auto from_hidden = plus(host(hidden_gates), hidden_bias).chunk(3, 1);
  auto hx = host(hx_in);
  auto r = (from_input[0] + from_hidden[0]).sigmoid();
  auto z = (from_input[1] + from_hidden[1]).sigmoid();
  auto n = (from_input[2] + r * from_hidden[2]).tanh();
  auto hy = n + z * (hx - n);
  return {to_spyre(hy, device), to_spyre(at::cat({r, z, n, hx, from_hidden[2]}, 1), device)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy_in,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  auto device = workspace.device().index();
  auto saved = host(workspace).chunk(5, 1);
  auto r = saved[0], z = saved[1], n = saved[2], hx = saved[3], hidden_n = saved[4];
  auto grad_hy = host(grad_hy_in);
  auto grad_n = grad_hy * (1 - z) * (1 - n * n);
  auto grad_z = grad_hy * (hx - n) * z * (1 - z);
  auto grad_r = grad_n * hidden_n * r * (1 - r);
  auto grad_input = at::cat({grad_r, grad_z, grad_n}, 1);
  auto grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  auto bias = [&](const Tensor& gates) {
    return has_bias ? to_spyre(gates.sum(0), device) : Tensor();
  };
  return {to_spyre(grad_input, device), to_spyre(grad_hidden, device),
          to_spyre(grad_hy * z, device), bias(grad_input), bias(grad_hidden)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace
}  // namespace spyre
