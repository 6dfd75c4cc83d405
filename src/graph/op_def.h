// The definition of an operator (OpDef). Each operator is defined in the file of its family in ops/.
#pragma once

#include <climits>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/elementwise_step.h"
#include "graph/graph.h"
#include "graph/kernel.h"
#include "graph/scalar_function.h"

namespace treadle {

class InferContext;
class GradientContext;
class FunctionBody;

/// A set of types that an operand may have: dtypes for tensors, and kinds of other values.
class TypeSet {
 public:
  constexpr TypeSet() = default;
  constexpr TypeSet(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= uint64_t{1} << static_cast<unsigned>(dtype);
  }
  static constexpr TypeSet of_kind(Type::Kind kind) {
    TypeSet set;
    set.bits_ = uint64_t{1} << (kFirstKind + static_cast<unsigned>(kind));
    return set;
  }
  constexpr TypeSet operator|(TypeSet other) const {
    TypeSet set;
    set.bits_ = bits_ | other.bits_;
    return set;
  }
  constexpr bool has(DType dtype) const { return (bits_ >> static_cast<unsigned>(dtype) & 1U) != 0; }
  bool accepts(const Type& type) const;
  constexpr bool operator==(const TypeSet&) const = default;
  std::string to_string() const;

 private:
  static constexpr unsigned kFirstKind = 48;  // lower bits: dtypes of tensors; bits from here on: other kinds of values
  uint64_t bits_ = 0;
};

inline constexpr TypeSet kFloats{DType::float16, DType::bfloat16, DType::float32, DType::float64};
inline constexpr TypeSet kSignedIntegers{DType::int8, DType::int16, DType::int32, DType::int64};
inline constexpr TypeSet kUnsignedIntegers{DType::uint8, DType::uint16, DType::uint32, DType::uint64};
inline constexpr TypeSet kIntegers = kSignedIntegers | kUnsignedIntegers;
inline constexpr TypeSet kNumeric = kFloats | kIntegers;
inline constexpr TypeSet kBool{DType::boolean};
inline constexpr TypeSet kString{DType::string};
inline constexpr TypeSet kComplex{DType::complex64, DType::complex128};
inline constexpr TypeSet kFloat8{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz, DType::float8e8m0};
inline constexpr TypeSet kSubByte{DType::uint4, DType::int4, DType::float4e2m1, DType::uint2, DType::int2};
inline constexpr TypeSet kAllTensors = kNumeric | kBool | kString | kComplex | kFloat8 | kSubByte;
inline constexpr TypeSet kInt32Or64{DType::int32, DType::int64};
inline constexpr TypeSet kInt64{DType::int64};
inline constexpr TypeSet kSequences = TypeSet::of_kind(Type::Kind::sequence);
inline constexpr TypeSet kOptionals = TypeSet::of_kind(Type::Kind::optional);
inline constexpr TypeSet kMaps = TypeSet::of_kind(Type::Kind::map);
inline constexpr TypeSet kSparse = TypeSet::of_kind(Type::Kind::sparse_tensor);
inline constexpr TypeSet kAnything = kAllTensors | kSequences | kOptionals | kMaps | kSparse;

enum class Presence : uint8_t { required, optional, variadic };

/// Allowed ranks of a tensor.
struct Ranks {
  int least = 0, most = INT_MAX;
};
inline constexpr Ranks of_rank(int exactly) { return {exactly, exactly}; }
inline constexpr Ranks of_ranks(int least, int most = INT_MAX) { return {least, most}; }

/// A formal input or output. Ports with the same `type_name` (such as "T") must have the same dtype; for non-tensors, the same kind and
/// dtype. A node has every required operand: the reader creates values for required outputs that a file omits.
struct Port {
  std::string_view name;
  TypeSet types;
  std::string_view type_name = "";
  Presence presence = Presence::required;
  Ranks ranks = {};  ///< for a variadic port: the rank of each tensor
};

/// Allowed values of an attribute: bounds for an integer or for each integer of a list, or a list of texts.
struct Allowed {
  int64_t least = INT64_MIN, most = INT64_MAX;
  std::string_view words = "";  ///< the allowed texts, separated by "|", such as "constant|edge|wrap"; empty: any text
  TypeSet dtypes = {};          ///< for an integer that stands for a dtype (by ONNX's numbers): allowed dtypes; empty: any integer
  constexpr bool any() const { return least == INT64_MIN && most == INT64_MAX && words.empty() && dtypes == TypeSet{}; }
};
inline constexpr Allowed at_least(int64_t least) { return {.least = least}; }
inline constexpr Allowed between(int64_t least, int64_t most) { return {.least = least, .most = most}; }
inline constexpr Allowed zero_or_one() { return between(0, 1); }
inline constexpr Allowed one_of(std::string_view words) { return {.words = words}; }
inline constexpr Allowed dtype_among(TypeSet dtypes) { return {.dtypes = dtypes}; }

struct AttributeDef {
  struct Required {};
  struct NoDefault {};
  std::string_view name;
  /// The default, which also determines the attribute's type. Without a default, the code that reads the attribute determines the type.
  std::variant<NoDefault, Required, int64_t, float, std::string_view> value = NoDefault{};
  Allowed allowed = {};
};

/// How an output may share the bytes of an input. `view`: the output has the same bytes in the same order, and nothing is computed
/// (Reshape). `reuse`: the kernel may overwrite the input while reading it, if nothing else needs the input afterwards.
struct Alias {
  enum class Kind : uint8_t { reuse, view };
  int output, input;
  Kind kind;
  bool alone = false;  ///< true if no other output depends on the input
};
inline constexpr Alias may_reuse(int output, int input) { return {output, input, Alias::Kind::reuse}; }
/// For an updated statistic: no other output of the node depends on the old value.
inline constexpr Alias updates_statistic(int output, int input) { return {output, input, Alias::Kind::reuse, /*alone=*/true}; }
inline constexpr Alias is_view(int output, int input) { return {output, input, Alias::Kind::view}; }

/// Floating-point operations, and bytes read and written.
struct Cost {
  double flops = 0, bytes = 0;
};

/// Rewrites a node to another form: as an opset upgrade, or as a decomposition into other operators. Edits the graph in place; the node
/// itself may be changed or removed.
using RewriteNode = void (*)(Graph& graph, NodeId node);

struct UpgradeStep {
  int from;  ///< rewrites nodes whose schema has this since-version to the next since-version
  RewriteNode rewrite;
};

enum class ControlFlow : uint8_t { none, if_, loop, scan };

/// How an operator joins or splits along `axis`. concat: the output is all inputs in order. split: the outputs are parts of input 0.
enum class Pieces : uint8_t { none, concat, split };

/// How an operator moves elements, if it computes nothing but copies elements of its operands to the output. `no`: the operator computes
/// elements or is of another kind.
enum class Moves : uint8_t {
  no,
  in_order,      ///< elements of input 0 in order, with another shape (Reshape)
  anywhere,      ///< elements move to other positions, or are repeated or dropped (Transpose, Gather)
  among_others,  ///< elements are placed among those of another operand, or among copies of a constant number (Pad, Where)
};

/// In which dtype float16 and bfloat16 operands are computed if the optimizer may choose (passes/compute_in_float32.cpp).
enum class HalfFloats : uint8_t {
  as_they_are,       ///< results depend on the rounding, or float32 gains nothing; operators that only move elements follow their operands
  float32,           ///< computes in float32 if adjacent operators do
  float32_by_itself  ///< computes in float32, as it is expensive enough to justify conversions
};

/// How an operator treats quantized values.
enum class Quantization : uint8_t {
  none,
  quantizes,    ///< the operator is QuantizeLinear
  dequantizes,  ///< the operator is DequantizeLinear
  chooses,      ///< moves elements, or takes maxima, of input 0 (all inputs for Pieces::concat), so quantization may come first
};

/// How to compute an operator, with the same results, on images in channels-last layout (passes/assign_layout.cpp).
struct ChannelsLast {
  enum class How : uint8_t {
    by_element,              ///< the same operator if it is pointwise; other operators need ONNX's layout
    first_operand,           ///< the same operator: operand 0 is the image, and the others apply to all of its elements
    axis,                    ///< the same operator with a different `axis`
    axes_vector,             ///< the same operator with different axes in operand 3 (Slice)
    pads_vector,             ///< the same operator with the pads in operand 1 reordered
    numbers_per_axis,        ///< the same operator with the numbers in operands 2 and 3 reordered
    reduction,               ///< the same operator over other axes; or `op`, if given, if the axes are all spatial axes
    spatial_reduction,       ///< the operator `op` over all spatial axes
    window,                  ///< the operator `op` with the same attributes; for 8-bit images `bytes_op`
    convolution,             ///< the operator `op`, if weights are constant or the graph is for training
    input_gradient,          ///< the operator `op` on a convolution's output gradient, weights and input shape
    weights_gradient,        ///< the operator `op` on a convolution's output gradient, image and weights' shape
    quantized_convolution,   ///< the operator `op`, with constant int8 weights
    transposed_convolution,  ///< the operator `op`, with constant weights and windows without overlap
    scale_and_shift,         ///< the operator `op`, with a scale and a shift per channel, both computed from constants
    statistics_gradient,     ///< the operator `op`, using statistics that the forward node has stored
    window_gradient,         ///< the operator `op`, on the gradient and on the input image of the pool that made operand 1 (indices)
    normalization,           ///< the operator `op` on the same operands
    permutation,             ///< the operator itself permutes axes
    shape,                   ///< the operator returns the shape of its input
  };
  How how = How::by_element;
  std::string_view op = "";           ///< operator of the treadle domain; or of ONNX, if the treadle domain has none with this name
  std::string_view bytes_op = "";     ///< operator of the treadle domain
  std::string_view training_op = "";  ///< operator of the treadle domain that also outputs values for the gradient
};

/// The number with which an operator returns its other operand x, such as 1 in x * 1 or 0 in x - 0, as operand `first` or a later one.
struct NeutralOperand {
  int first = 2;  ///< 0: either operand may be neutral; 1: only operand 1; 2: the operator has no neutral number
  double number = 0;
  bool negative_zero = false;  ///< true: for floats, the neutral zero is -0 rather than +0
};

/// A node written as a step of a chain of pointwise operators, and the operands of the step. kNoValue stands for the number 0.
struct PointwiseStep {
  ElementwiseStep step;
  std::vector<ValueId> operands;
};

/// The chain steps that compute a binary operator on the accumulator `acc` and an operand x: `forward` is acc op x, `reversed` is x op acc.
struct ChainSteps {
  kernels::ChainOp forward{}, reversed{};
  bool given = false;
};

/// For an operator that computes gradients: which values it differentiates, and with respect to which operands.
struct Differentiated {
  std::vector<ValueId> ys;  ///< the values that the operator differentiates
  int first_gradient = 0;   ///< index of the operand that is the gradient of ys[0]; the gradients of the other ys follow
  std::span<const int> xs;  ///< for each output: index of the operand with respect to which it is the gradient
};

struct OpDef {
  std::string_view name;
  std::string_view domain = "";
  std::vector<int> since = {};            ///< opset versions in which the operator's schema changed; the last one is the newest
  std::vector<UpgradeStep> upgrade = {};  ///< only steps that change nodes; nodes of other versions stay as they are
  std::vector<Port> inputs = {}, outputs = {};
  std::vector<AttributeDef> attributes = {};
  void (*infer)(InferContext&) = nullptr;
  Cost (*cost)(const ShapeContext&) = nullptr;
  std::vector<Alias> alias = {};
  std::vector<KernelDef> kernels = {};
  TrainingFunction<std::vector<ValueId>(GradientContext&)> gradient = nullptr;
  /// For an operator whose kernel computes gradients of another operator: returns the values that it differentiates. They are recomputed
  /// from `operands` by operators that have differentiable gradients. For second derivatives, autodiff differentiates these values twice,
  /// instead of differentiating the node once.
  TrainingFunction<Differentiated(GradientContext& g, std::span<const ValueId> operands)> differentiated = nullptr;
  /// Rewrites the node into other operators (an exact ONNX function body), before other passes see the node.
  RewriteNode decompose = nullptr;
  /// Inputs whose elements inference or bind() reads (axes, shapes, repeats and the like).
  std::vector<int> value_inputs = {};
  ControlFlow control_flow = ControlFlow::none;
  /// How the operator joins or splits tensors. Its kernels do not copy a piece that is already in place, in memory shared by both sides.
  Pieces pieces = Pieces::none;
  bool deterministic = true;  ///< false: produces random numbers; never folded or merged
  /// True if the elements of operands decide how much is computed, and the shapes give no bound. Such nodes are never folded.
  bool computes_by_elements = false;

  /// True for an operator of the treadle domain that model files may contain. Only the optimizer and the trainer make other such operators.
  bool in_files = false;

  // Properties for passes and planners.

  /// True if each output element depends only on the operands' elements at the same position, after broadcasting.
  bool pointwise = false;
  /// True if the output is 0 wherever input 0 is 0, for any attributes. With two operands, this is so if the other one is finite and not 0.
  bool keeps_zeros = false;
  Moves moves = Moves::no;
  HalfFloats half = HalfFloats::as_they_are;
  Quantization quantization = Quantization::none;
  ChannelsLast channels_last = {};
  /// True: exchanges values with the caller in mid-run. Never removed, folded, merged or given to a backend; no node moves across it.
  bool barrier = false;
  /// True if the node sends values to other ranks or receives their values.
  bool communicates = false;
  /// Returns the index of the input whose updated version is output i, so that both may be bound to the same memory; -1 if output i is not
  /// such a version. The node runs after all readers of the old version.
  int (*updated_input)(const Node& node, int output) = nullptr;
  NeutralOperand neutral = {};
  /// Returns true if the node returns input 0 unchanged: same dtype, shape and elements.
  bool (*returns_input)(const Graph& graph, const Node& node) = nullptr;
  /// The scalar functions that the operator can compute; its attributes select one of them.
  std::span<const ScalarFunction> functions = {};
  /// Returns the node as a step of a chain of pointwise operators; nullopt if a chain cannot compute the node (other dtypes, computed
  /// parameters).
  std::optional<PointwiseStep> (*step)(const Graph& graph, const Node& node) = nullptr;
  ChainSteps chain = {};
  /// Index of the first of the operands that belong to a chain: a node may compute one of its inputs by a chain of operators, described by
  /// the attribute `steps`, from the operands at this index and after it. -1: the operator cannot compute a chain.
  int chain_input = -1;
  /// For an operator of the treadle domain: writes it as ONNX operators, for files. `function_opset`: the oldest opset that has these.
  TrainingFunction<void(FunctionBody& body)> write_function = nullptr;
  TrainingFunction<int(const Node& node)> function_opset = nullptr;
};

/// Finds an operator by ONNX's domain and name; null if this build does not have it. The default domain is "" (import replaces "ai.onnx").
const OpDef* find_op(std::string_view domain, std::string_view name);
/// Returns all operators, sorted by domain and name.
std::span<const OpDef> all_ops();
/// Returns the newest opset version of a domain in this build; 0 for an unknown domain.
int newest_opset(std::string_view domain);

}  // namespace treadle
