// The definition of an operator: one OpDef, in its family's file under ops/.
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

/// A set of types that an operand may have: dtypes of tensors, and kinds of non-tensors.
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
  static constexpr unsigned kFirstKind = 48;  // lower bits: dtypes of tensors; upper bits: other kinds
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

/// A formal input or output. Ports with the same `type_name` ("T") must have the same dtype (non-tensors: kind and dtype). A node has every
/// required operand: the reader creates values for required outputs that a file omits.
struct Port {
  std::string_view name;
  TypeSet types;
  std::string_view type_name = "";
  Presence presence = Presence::required;
  Ranks ranks = {};  ///< for a variadic port: the rank of each tensor
};

/// Allowed values of an attribute: bounds for an integer, or for each integer of a list; or a text among `words`.
struct Allowed {
  int64_t least = INT64_MIN, most = INT64_MAX;
  std::string_view words = "";  ///< the allowed texts, as "constant|edge|wrap"; empty: any text
  TypeSet dtypes = {};          ///< for an integer that names a dtype by ONNX's number; empty: it does not
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
  /// The default, which also defines the attribute's type. Without one, the code that reads the attribute defines the type.
  std::variant<NoDefault, Required, int64_t, float, std::string_view> value = NoDefault{};
  Allowed allowed = {};
};

/// Says how an output may share the bytes of an input. `view`: same bytes in the same order, and nothing is computed (Reshape). `reuse`:
/// the kernel may overwrite the input while reading it, if nothing else needs the input afterwards.
struct Alias {
  enum class Kind : uint8_t { reuse, view };
  int output, input;
  Kind kind;
  bool alone = false;  ///< no other output depends on the input
};
inline constexpr Alias may_reuse(int output, int input) { return {output, input, Alias::Kind::reuse}; }
/// An updated statistic, on which no other output of the node depends.
inline constexpr Alias updates_statistic(int output, int input) { return {output, input, Alias::Kind::reuse, /*alone=*/true}; }
inline constexpr Alias is_view(int output, int input) { return {output, input, Alias::Kind::view}; }

/// Floating-point operations, and bytes read and written.
struct Cost {
  double flops = 0, bytes = 0;
};

/// Rewrites a node to another form: an opset upgrade, or a decomposition into other operators. Edits the graph in place; the node itself
/// may be changed or removed.
using RewriteNode = void (*)(Graph& graph, NodeId node);

struct UpgradeStep {
  int from;  ///< since-version of the nodes that it rewrites, to the next since-version
  RewriteNode rewrite;
};

enum class ControlFlow : uint8_t { none, if_, loop, scan };

/// Elements keep their order along `axis`. concat: the output is all inputs one after the other. split: the outputs are pieces of input 0.
enum class Pieces : uint8_t { none, concat, split };

/// Says how an operator moves elements, if every output element is a copy of an element of an operand. `no`: the operator computes
/// elements.
enum class Moves : uint8_t {
  no,
  in_order,      ///< elements of input 0 in order, with another shape (Reshape)
  anywhere,      ///< elements move to other positions, or are repeated or dropped (Transpose, Gather)
  among_others,  ///< together with elements of another operand, or a constant number (Pad, Where)
};

/// Dtype in which float16 and bfloat16 operands are computed if the optimizer may choose (passes/compute_in_float32.cpp).
enum class HalfFloats : uint8_t {
  as_they_are,       ///< decides by rounded values, or gains nothing; an operator that only moves elements follows its operands
  float32,           ///< computes in float32, next to other operators in float32
  float32_by_itself  ///< computes in float32, as it is expensive enough to justify conversions
};

/// Says how an operator relates to quantized values.
enum class Quantization : uint8_t {
  none,
  quantizes,    ///< the operator is QuantizeLinear
  dequantizes,  ///< the operator is DequantizeLinear
  chooses,      ///< moves elements or takes maxima of input 0 (all inputs for Pieces::concat): commutes with quantization
};

/// Says how an operator is computed with the same results on images in channels-last layout (passes/assign_layout.cpp).
struct ChannelsLast {
  enum class How : uint8_t {
    by_element,              ///< unchanged if it is pointwise; otherwise it needs ONNX's order
    first_operand,           ///< unchanged: operand 0 is the image, others apply to all of its elements
    axis,                    ///< the same operator with a different `axis`
    axes_vector,             ///< the same operator with different axes in operand 3 (Slice)
    pads_vector,             ///< the same operator with the pads in operand 1 reordered
    numbers_per_axis,        ///< the same operator with the numbers in operands 2 and 3 reordered
    reduction,               ///< the same operator over different axes, or `op`, if given, over all spatial axes
    spatial_reduction,       ///< the operator `op` over all spatial axes
    window,                  ///< computed by `op` with the same attributes; for 8-bit images by `bytes_op`
    convolution,             ///< the operator `op`, with constant weights or in a joint graph
    input_gradient,          ///< the operator `op` on a convolution's output gradient, weights and input shape
    weights_gradient,        ///< the operator `op` on a convolution's output gradient, image and weights' shape
    quantized_convolution,   ///< the operator `op`, with constant int8 weights
    transposed_convolution,  ///< the operator `op`, with constant weights and windows without overlap
    scale_and_shift,         ///< the operator `op`, with a scale and a shift per channel from constants
    statistics_gradient,     ///< computed by `op`, from statistics that the forward node has stored
    window_gradient,         ///< computed by `op` from the gradient and the input image of the pool whose indices are operand 1
    normalization,           ///< computed by `op` from the same operands
    permutation,             ///< the operator is itself a permutation of axes
    shape,                   ///< the operator returns the shape
  };
  How how = How::by_element;
  std::string_view op = "";           ///< operator of the treadle domain, or ONNX's if the treadle domain has none of the name
  std::string_view bytes_op = "";     ///< operator of the treadle domain
  std::string_view training_op = "";  ///< operator of the treadle domain that also outputs values for the gradient
};

/// A number with x op number = x, as one of the operands `first` to 1.
struct NeutralOperand {
  int first = 2;  ///< for floats, the zero must be -0
  double number = 0;
  bool negative_zero = false;  ///< of floats, the zero is -0
};

/// A node as a step of a chain of pointwise operators, and its operands. kNoValue means the number 0.
struct PointwiseStep {
  ElementwiseStep step;
  std::vector<ValueId> operands;
};

/// The steps of a chain that compute a binary operator: one for acc op x, one for x op acc.
struct ChainSteps {
  kernels::ChainOp forward{}, reversed{};
  bool given = false;
};

/// For an operator that computes gradients: the values that it differentiates, and the operands with respect to which it does.
struct Differentiated {
  std::vector<ValueId> ys;  ///< values that the operator differentiates
  int first_gradient = 0;   ///< operand that is the gradient of ys[0]; the other gradients follow
  std::span<const int> xs;  ///< for each output, the operand with respect to which it is the gradient
};

struct OpDef {
  std::string_view name;
  std::string_view domain = "";
  std::vector<int> since = {};            ///< versions in which the operator's schema changed; the last is the newest
  std::vector<UpgradeStep> upgrade = {};  ///< only steps that change something; nodes of other versions are unchanged
  std::vector<Port> inputs = {}, outputs = {};
  std::vector<AttributeDef> attributes = {};
  void (*infer)(InferContext&) = nullptr;
  Cost (*cost)(const ShapeContext&) = nullptr;
  std::vector<Alias> alias = {};
  std::vector<KernelDef> kernels = {};
  TrainingFunction<std::vector<ValueId>(GradientContext&)> gradient = nullptr;
  /// For an operator whose kernel computes the gradients of another one: returns the values that it differentiates, recomputed from the
  /// operands `operands` by operators with differentiable rules. To compute second derivatives, autodiff differentiates these values twice
  /// instead of the node once.
  TrainingFunction<Differentiated(GradientContext& g, std::span<const ValueId> operands)> differentiated = nullptr;
  /// Rewrites the node into other operators (an exact ONNX function body), before other passes see it.
  RewriteNode decompose = nullptr;
  /// Inputs whose elements inference or bind() reads (axes, shapes, repeats etc.).
  std::vector<int> value_inputs = {};
  ControlFlow control_flow = ControlFlow::none;
  /// Kernels do not copy a piece that is already in place, in memory shared by input and output.
  Pieces pieces = Pieces::none;
  bool deterministic = true;  ///< false: random numbers; never folded or merged
  /// The elements of operands decide how much is computed, without a bound by their shapes; never folded.
  bool computes_by_elements = false;

  /// A treadle operator that model files may contain. The others are only created by the optimizer and the trainer.
  bool in_files = false;

  // Properties for passes and planners.

  /// True if each output element depends only on the elements at its position in the operands, with broadcasting.
  bool pointwise = false;
  /// If input 0 is 0, the output is 0 too, for any attributes. With two operands, this holds if the other operand is finite and not 0.
  bool keeps_zeros = false;
  Moves moves = Moves::no;
  HalfFloats half = HalfFloats::as_they_are;
  Quantization quantization = Quantization::none;
  ChannelsLast channels_last = {};
  /// Exchanges values with the caller during the run: never removed, folded, merged or given to a backend, and no node moves across it.
  bool barrier = false;
  /// Sends values to other ranks, or receives theirs.
  bool communicates = false;
  /// Returns the input of which output i is the updated version, so that both may be bound to the same memory; -1 for other outputs. The
  /// node runs after all readers of the old versions.
  int (*updated_input)(const Node& node, int output) = nullptr;
  NeutralOperand neutral = {};
  /// Returns true if the node returns input 0 unchanged: same dtype, shape and elements.
  bool (*returns_input)(const Graph& graph, const Node& node) = nullptr;
  /// The scalar functions that the operator computes, selected by attributes.
  std::span<const ScalarFunction> functions = {};
  /// Returns the node as a step of a chain of pointwise operators; nullopt if a chain cannot compute it (other dtypes, computed
  /// parameters).
  std::optional<PointwiseStep> (*step)(const Graph& graph, const Node& node) = nullptr;
  ChainSteps chain = {};
  /// Index of the input that a node may compute by a chain of operators: the operands from this index on belong to the chain, and the
  /// attribute `steps` describes it. -1: none.
  int chain_input = -1;
  /// For a treadle operator: expresses it by ONNX operators, for writing files. `function_opset` is the oldest opset that has these.
  TrainingFunction<void(FunctionBody& body)> write_function = nullptr;
  TrainingFunction<int(const Node& node)> function_opset = nullptr;
};

/// Finds an operator by ONNX's domain and name; null if this build lacks it. The default domain is "" ("ai.onnx" is normalized on import).
const OpDef* find_op(std::string_view domain, std::string_view name);
/// Returns all operators, sorted by domain and name.
std::span<const OpDef> all_ops();
/// Returns the newest opset version of a domain in this build; 0 for an unknown domain.
int newest_opset(std::string_view domain);

}  // namespace treadle
