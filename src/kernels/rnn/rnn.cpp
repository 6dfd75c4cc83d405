#include "kernels/rnn/rnn.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/trace/kernel_phases.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/rnn/cell.h"
#include "kernels/scratch_slots.h"
#include "treadle/error.h"

namespace treadle::kernels {
namespace {

// The layout of the packed weights of one direction: offsets in floats, each aligned to a cache line.
struct Layout {
  int64_t W = 0, R = 0, R_last = 0, bias = 0, bias_last = 0, peephole = 0, size = 0;
  explicit Layout(const RnnParams& p) {
    const int64_t gh = p.gates() * p.hidden;
    // The candidate gate of a GRU needs a separate product, because the reset gate may multiply the state first.
    const int64_t first = p.kind == RnnKind::gru ? 2 * p.hidden : gh;
    auto place = [&](int64_t count) {
      const int64_t at = size;
      size += (count + 15) / 16 * 16;
      return at;
    };
    W = place(packed_b_size<float>(p.input, gh));
    R = place(packed_b_size<float>(p.hidden, first));
    R_last = place(p.kind == RnnKind::gru ? packed_b_size<float>(p.hidden, p.hidden) : 0);
    bias = place(gh);
    bias_last = place(p.hidden);
    peephole = place(3 * p.hidden + 1);  // the last element is 1 if there are peepholes
  }
};

struct Strides {
  int64_t step, row;
};

/// One direction of one call of rnn().
struct Run {
  const RnnParams& p;
  int direction;
  bool reverse;
  const float* packed;
  const RnnData& data;
  ThreadPool* pool;
  float *inputs, *gates, *h, *c, *work;  // [steps * batch, gates * hidden], [batch, gates * hidden], [batch, hidden] x 2, [batch, hidden]

  int64_t length(int64_t b) const { return data.sequence_lengths ? data.sequence_lengths[b] : p.steps; }
  int64_t time(int64_t step, int64_t b) const { return reverse ? length(b) - 1 - step : step; }
  Strides rows() const { return p.batch_first ? Strides{1, p.steps} : Strides{p.batch, 1}; }
  int64_t state_place(int64_t b) const { return (p.batch_first ? b * p.num_directions() + direction : direction * p.batch + b) * p.hidden; }
  int64_t y_place(int64_t t, int64_t b) const {
    const int64_t D = p.num_directions();
    return (p.batch_first ? (b * p.steps + t) * D + direction : (t * D + direction) * p.batch + b) * p.hidden;
  }
};

void load_state(const Run& r, const float* initial, float* state) {
  for (int64_t b = 0; b < r.p.batch; ++b) {
    if (initial) {
      std::memcpy(state + b * r.p.hidden, initial + r.state_place(b), static_cast<size_t>(r.p.hidden) * sizeof(float));
    } else {
      std::fill(state + b * r.p.hidden, state + (b + 1) * r.p.hidden, 0.0f);
    }
  }
}

void store_state(const Run& r, const float* state, float* dst) {
  if (dst == nullptr) return;
  for (int64_t b = 0; b < r.p.batch; ++b)
    std::memcpy(dst + r.state_place(b), state + b * r.p.hidden, static_cast<size_t>(r.p.hidden) * sizeof(float));
}

/// Rounds x as DynamicQuantizeLinear followed by DequantizeLinear would.
void round_to_bytes(const float* x, int64_t n, float* rounded) {
  const auto [low, high] = range_around_zero(x, n);
  const float scale = high == low ? 1.0f : (high - low) / 255.0f;
  const float zero = std::nearbyint(std::clamp(-low / scale, 0.0f, 255.0f));
  for (int64_t i = 0; i < n; ++i) rounded[i] = (std::clamp(std::nearbyint(x[i] / scale) + zero, 0.0f, 255.0f) - zero) * scale;
}

/// Sets the gates to this step's rows of the input product plus, for the first `first` gates, the product of the state and the weights.
void gate_products(const Run& r, const Layout& layout, int64_t step, int64_t first) {
  const RnnParams& p = r.p;
  const int64_t gh = p.gates() * p.hidden;
  const Strides rows = r.rows();
  Epilogue<float> add{.residual = r.gates, .residual_row = gh};
  if (first == p.gates() && r.data.sequence_lengths == nullptr) {
    add.residual = r.inputs + r.time(step, 0) * rows.step * gh;
    add.residual_row = rows.row * gh;
  } else {
    for (int64_t b = 0; b < p.batch; ++b) {
      if (step >= r.length(b)) continue;
      const float* from = r.inputs + (r.time(step, b) * rows.step + b * rows.row) * gh;
      std::memcpy(r.gates + b * gh, from, static_cast<size_t>(gh) * sizeof(float));
    }
  }
  const PackedB<float> weights{.K = p.hidden, .N = first * p.hidden, .data = r.packed + layout.R, .backwards = step % 2 != 0};
  if (p.bytes) round_to_bytes(r.h, p.batch * p.hidden, r.work);
  gemm<float>(p.batch, {p.bytes ? r.work : r.h, p.hidden, 1}, weights, r.gates, gh, add, r.pool);
}

void lstm_step(const Run& r, const Layout& layout, int64_t step) {
  const RnnParams& p = r.p;
  const int64_t H = p.hidden;
  gate_products(r, layout, step, 4);
  const RnnActivation* act = p.activations[r.direction];
  const bool peepholes = r.packed[layout.peephole + 3 * H] != 0;
  const bool plain = !peepholes && p.clip == 0 && !p.input_forget && act[0].function == Unary::sigmoid && act[1].function == Unary::tanh &&
                     act[2].function == Unary::tanh;
  const PhaseScope cells(KernelPhase::epilogue);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (step >= r.length(b)) continue;
    float *gates = r.gates + b * 4 * H, *c = r.c + b * H, *h = r.h + b * H;
    if (plain) {
      lstm_cell_plain(H, gates, c, h);
    } else {
      lstm_cell(p, act, peepholes ? r.packed + layout.peephole : nullptr, gates, c, h, r.work);
    }
  }
}

void gru_step(const Run& r, const Layout& layout, int64_t step) {
  const RnnParams& p = r.p;
  const int64_t H = p.hidden;
  gate_products(r, layout, step, 2);
  const RnnActivation* act = p.activations[r.direction];
  PhaseScope cells(KernelPhase::epilogue);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (step >= r.length(b)) continue;
    float *gates = r.gates + b * 3 * H, *reset = gates + H;
    activate_gate(p, act[0], gates, 2 * H);
    if (!p.linear_before_reset) {
      for (int64_t j = 0; j < H; ++j) r.work[b * H + j] = reset[j] * r.h[b * H + j];
    }
  }
  const PackedB<float> candidate{H, H, r.packed + layout.R_last};
  cells.next(KernelPhase::compute);
  if (p.linear_before_reset) {
    const Epilogue<float> bias{.bias = r.packed + layout.bias_last};
    gemm<float>(p.batch, {r.h, H, 1}, candidate, r.work, H, bias, r.pool);
  } else {
    const Epilogue<float> add{.residual = r.gates + 2 * H, .residual_row = 3 * H};
    gemm<float>(p.batch, {r.work, H, 1}, candidate, r.gates + 2 * H, 3 * H, add, r.pool);
  }
  cells.next(KernelPhase::epilogue);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (step >= r.length(b)) continue;
    float *update = r.gates + b * 3 * H, *reset = update + H, *last = update + 2 * H, *h = r.h + b * H;
    if (p.linear_before_reset) {
      for (int64_t j = 0; j < H; ++j) last[j] += reset[j] * r.work[b * H + j];
    }
    activate_gate(p, act[1], last, H);
    for (int64_t j = 0; j < H; ++j) h[j] = (1 - update[j]) * last[j] + update[j] * h[j];
  }
}

void rnn_step(const Run& r, const Layout& layout, int64_t step) {
  const int64_t H = r.p.hidden;
  gate_products(r, layout, step, 1);
  const PhaseScope cells(KernelPhase::epilogue);
  for (int64_t b = 0; b < r.p.batch; ++b) {
    if (step >= r.length(b)) continue;
    activate_gate(r.p, r.p.activations[r.direction][0], r.gates + b * H, H);
    std::memcpy(r.h + b * H, r.gates + b * H, static_cast<size_t>(H) * sizeof(float));
  }
}

void run_direction(const Run& r) {
  const RnnParams& p = r.p;
  const Layout layout(p);
  const int64_t gh = p.gates() * p.hidden;
  const Epilogue<float> bias{.bias = r.packed + layout.bias};
  gemm<float>(p.steps * p.batch, {r.data.X, p.input, 1}, {p.input, gh, r.packed + layout.W}, r.inputs, gh, bias, r.pool);
  load_state(r, r.data.initial_h, r.h);
  if (p.kind == RnnKind::lstm) load_state(r, r.data.initial_c, r.c);
  for (int64_t step = 0; step < p.steps; ++step) {
    switch (p.kind) {
      case RnnKind::rnn: rnn_step(r, layout, step); break;
      case RnnKind::gru: gru_step(r, layout, step); break;
      case RnnKind::lstm: lstm_step(r, layout, step); break;
    }
    if (r.data.Y == nullptr) continue;
    for (int64_t b = 0; b < p.batch; ++b) {
      if (step < r.length(b)) {
        std::memcpy(r.data.Y + r.y_place(r.time(step, b), b), r.h + b * p.hidden, static_cast<size_t>(p.hidden) * sizeof(float));
      } else {
        float* y = r.data.Y + r.y_place(step, b);
        std::fill(y, y + p.hidden, 0.0f);
      }
    }
  }
  store_state(r, r.h, r.data.Y_h);
  if (p.kind == RnnKind::lstm) store_state(r, r.c, r.data.Y_c);
}

int64_t scratch_floats(const RnnParams& p) {
  const int64_t gh = p.gates() * p.hidden;
  return (p.steps * p.batch * gh + p.batch * gh + 3 * p.batch * p.hidden + 15) / 16 * 16;
}

}  // namespace

void RnnParams::set_default_activations() {
  for (auto& one : activations) {
    one[0] = {kind == RnnKind::rnn ? Unary::tanh : Unary::sigmoid};
    one[1] = one[2] = {Unary::tanh};
  }
}

int64_t packed_rnn_size(const RnnParams& p) { return Layout(p).size * p.num_directions(); }

void pack_rnn(const RnnParams& p, const RnnWeights& w, float* packed) {
  const Layout layout(p);
  const int64_t H = p.hidden, gh = p.gates() * H, first = p.kind == RnnKind::gru ? 2 * H : gh;
  for (int d = 0; d < p.num_directions(); ++d) {
    float* dst = packed + d * layout.size;
    const float* R = w.R + d * gh * H;
    pack_b(w.W + d * gh * p.input, p.input, gh, p.input, true, dst + layout.W);
    pack_b(R, H, first, H, true, dst + layout.R);
    if (p.kind == RnnKind::gru) pack_b(R + 2 * H * H, H, H, H, true, dst + layout.R_last);
    for (int64_t j = 0; j < gh; ++j) {
      const float input = w.B ? w.B[(2 * d) * gh + j] : 0, recurrent = w.B ? w.B[(2 * d + 1) * gh + j] : 0;
      // If linear_before_reset, the reset gate also multiplies the candidate's recurrent bias. So this bias is stored separately.
      const bool apart = p.kind == RnnKind::gru && p.linear_before_reset && j >= 2 * H;
      dst[layout.bias + j] = apart ? input : input + recurrent;
      if (j >= gh - H) dst[layout.bias_last + j - (gh - H)] = recurrent;
    }
    for (int64_t j = 0; j < 3 * H; ++j) dst[layout.peephole + j] = w.P ? w.P[d * 3 * H + j] : 0;
    dst[layout.peephole + 3 * H] = w.P && p.kind == RnnKind::lstm ? 1.0f : 0.0f;
  }
}

size_t rnn_scratch_bytes(const RnnParams& p) { return static_cast<size_t>(scratch_floats(p) * p.num_directions()) * sizeof(float); }

void rnn(const RnnParams& p, const float* packed, const RnnData& data, void* scratch, ThreadPool* pool) {
  for (int64_t b = 0; data.sequence_lengths && b < p.batch; ++b) {
    if (data.sequence_lengths[b] < 0 || data.sequence_lengths[b] > p.steps) {
      throw Error(ErrorCode::invalid_argument,
                  "sequence length " + std::to_string(data.sequence_lengths[b]) + " is not in [0, " + std::to_string(p.steps) + "]");
    }
  }
  const int64_t gh = p.gates() * p.hidden, size = Layout(p).size;
  parallel_for(pool, p.num_directions(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t d = begin; d < end; ++d) {
      float* memory = static_cast<float*>(scratch) + d * scratch_floats(p);
      float* gates = memory + p.steps * p.batch * gh;
      float* h = gates + p.batch * gh;
      run_direction({.p = p,
                     .direction = static_cast<int>(d),
                     .reverse = p.direction == RnnDirection::reverse || d == 1,
                     .packed = packed + d * size,
                     .data = data,
                     .pool = pool,
                     .inputs = memory,
                     .gates = gates,
                     .h = h,
                     .c = h + p.batch * p.hidden,
                     .work = h + 2 * p.batch * p.hidden});
    }
  });
}

}  // namespace treadle::kernels
