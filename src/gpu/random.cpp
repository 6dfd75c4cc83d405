// Computes random numbers: RandomUniform, RandomNormal, Bernoulli, Multinomial. In float64, they equal the host's numbers, except for the
// last bit of functions. If the device has no float64, they are computed in float32.
#include <cstring>
#include <optional>

#include "gpu/code_writer.h"
#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/generator/random_key.h"

namespace treadle::gpu {
namespace {

/// The kinds of random numbers, with their numbers in random.comp.
enum class RandomKind : uint32_t { uniform, normal, bernoulli, cumulate, draw };

struct RandomState final : PackedState {
  const vulkan::Shader *wide = nullptr, *narrow = nullptr;  // shaders for float64 and for float32
  const vulkan::Shader *wide_sums = nullptr, *narrow_sums = nullptr;
};

struct RandomCall {
  void* y = nullptr;
  const void* x = nullptr;
  void* sums = nullptr;
  uint64_t key = 0, stream = 0;
  double offset = 0, scale = 1;
  int64_t count = 0, classes = 0, samples = 0;
  bool is_long = false;
};

void dispatch_random(const vulkan::Shader& wide, const vulkan::Shader* narrow, const RandomCall& call, int64_t invocations) {
  const bool has_wide = stream().features().float64 || !narrow;
  Push push;
  push.pointer(call.y).pointer(call.x).pointer(call.sums);
  for (const uint64_t words : {call.key, call.stream}) push.word(static_cast<uint32_t>(words)).word(static_cast<uint32_t>(words >> 32));
  for (const double number : {call.offset, call.scale}) {
    if (!has_wide) {
      push.word(static_cast<float>(number));
      continue;
    }
    uint32_t words[2];
    std::memcpy(words, &number, sizeof(number));
    push.word(words[0]).word(words[1]);
  }
  push_sizes(push, {call.count, call.classes, call.samples, call.is_long});
  stream().dispatch(has_wide ? wide : *narrow, push.bytes(), groups_over(count32(invocations)));
}

/// Computes RandomUniform, RandomNormal, RandomUniformLike, RandomNormalLike and Bernoulli.
struct Random : ops::RandomRange {
  int64_t count;
  uint64_t key;
  ConvertedOperand x, y;  // x: the probabilities, for Bernoulli only

  static Random bind(BindContext& c) {
    Random k{{0, 1}, count32(c.output_shape(0).num_elements()), ops::random_key(c), {}, {}};
    ops::ScratchLayout layout;
    const DType given = c.output_dtype(0);
    if (c.node().op_type == "Bernoulli") {
      k.x = ConvertedOperand::reserve(layout, c.dtype(0), wide_type(c.dtype(0)), k.count);
      k.y = ConvertedOperand::reserve(layout, given, wide_type(c.dtype(0)), k.count);
    } else {
      static_cast<RandomRange&>(k) = RandomRange::bind(c);
      k.y = ConvertedOperand::reserve(layout, given, wide_type(given), k.count);
    }
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<RandomState>();
    RandomCall call{.y = y.result(c, 0), .key = key, .stream = c.run_id, .offset = offset, .scale = scale, .count = count};
    if (x.count > 0) call.x = x.read(c, 0);
    dispatch_random(*state.wide, state.narrow, call, (count + 1) / 2);
    y.store(c, 0);
  }
};

struct Multinomial : ops::MultinomialPlan {
  bool is_long;
  uint64_t key;
  ConvertedOperand x;
  int64_t sums;  // offset in scratch memory, in bytes

  static Multinomial bind(BindContext& c) {
    Multinomial k{MultinomialPlan::bind(c), c.output_dtype(0) == DType::int64, ops::random_key(c), {}, 0};
    ops::ScratchLayout layout;
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), wide_type(c.dtype(0)), c.num_elements(0));
    k.sums = layout.take(static_cast<size_t>(c.num_elements(0)) * sizeof(double));
    count32(k.batch * k.samples);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (batch * samples == 0) return;
    const auto& state = c.packed<RandomState>();
    RandomCall call{.y = c.out<void>(0), .x = x.read(c, 0), .sums = ops::scratch_at(c, sums), .key = key, .stream = c.run_id};
    call.classes = classes, call.samples = samples, call.is_long = is_long;
    call.count = batch;
    dispatch_random(*state.wide_sums, state.narrow_sums, call, batch);
    call.count = batch * samples;
    dispatch_random(*state.wide, state.narrow, call, call.count);
  }
};

std::optional<RandomKind> random_kind(const Node& node) {
  if (!node.domain.empty()) return std::nullopt;
  if (node.op_type == "RandomUniform" || node.op_type == "RandomUniformLike") return RandomKind::uniform;
  if (node.op_type == "RandomNormal" || node.op_type == "RandomNormalLike") return RandomKind::normal;
  if (node.op_type == "Bernoulli") return RandomKind::bernoulli;
  if (node.op_type == "Multinomial") return RandomKind::draw;
  return std::nullopt;
}

/// @param is_wide  true: the operands are float64. There is no `narrow` shader then, since float32 cannot represent them.
void find_shaders(RandomKind kind, bool is_wide, const vulkan::Shader*& wide, const vulkan::Shader*& narrow) {
  const uint32_t constants[] = {static_cast<uint32_t>(kind), uint32_t{is_wide}};
  wide = find_shader("random", DType::float64, constants);
  narrow = is_wide ? nullptr : find_shader("random", DType::float32, constants);
}

}  // namespace

DeviceKernel find_random(const Graph& graph, const Node& node) {
  static const KernelDef random = kernel<Random>("gpu"), multinomial = kernel<Multinomial>("gpu");
  const std::optional<RandomKind> kind = random_kind(node);
  if (!kind) return {};
  const bool reads = *kind == RandomKind::bernoulli || *kind == RandomKind::draw;
  const DType numbers = reads ? graph.type(node.inputs[0]).dtype : graph.type(node.outputs[0]).dtype;
  Arithmetic result{};
  if (!arithmetic_of(graph.type(node.outputs[0]).dtype, result)) return {};
  auto state = std::make_shared<RandomState>();
  const bool is_wide = numbers == DType::float64;
  find_shaders(*kind, is_wide, state->wide, state->narrow);
  if (*kind != RandomKind::draw) return {&random, std::move(state)};
  find_shaders(RandomKind::cumulate, is_wide, state->wide_sums, state->narrow_sums);
  return {&multinomial, std::move(state)};
}

}  // namespace treadle::gpu
