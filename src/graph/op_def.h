// What the runtime knows of an operator: one OpDef in its family's file under ops/.
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

/// A set of types that an operand may have: dtypes of tensors, and the other kinds.
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
  static constexpr unsigned kFirstKind = 48;  // lower bits are dtypes, the others the kinds that are not tensors
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

/// How many axes a tensor may have.
struct Ranks {
  int least = 0, most = INT_MAX;
};
inline constexpr Ranks of_rank(int exactly) { return {exactly, exactly}; }
inline constexpr Ranks of_ranks(int least, int most = INT_MAX) { return {least, most}; }

/// A formal input or output. Ports with the same `type_name` ("T") must have the same dtype (kind and dtype for non-tensors).
/// A node has every required operand: the reader makes a value for a required output that a file leaves out.
struct Port {
  std::string_view name;
  TypeSet types;
  std::string_view type_name = "";
  Presence presence = Presence::required;
  Ranks ranks = {};  ///< of each tensor, for a variadic port too
};

/// What an attribute may be: bounds for an integer, or for each of a list; or a text out of `words`.
struct Allowed {
  int64_t least = INT64_MIN, most = INT64_MAX;
  std::string_view words = "";  ///< "constant|edge|wrap"; empty: any text
  TypeSet dtypes = {};          ///< of an integer that names a dtype, as ONNX numbers them; none: it names no dtype
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
  /// The default, whose type is the attribute's; without one, what reads the attribute says its type.
  std::variant<NoDefault, Required, int64_t, float, std::string_view> value = NoDefault{};
  Allowed allowed = {};
};

/// How an output may share bytes with an input. `view`: same bytes, same order, nothing is computed (Reshape).
/// `reuse`: the kernel may write over the input while it reads it, if nobody else needs the input any more.
struct Alias {
  enum class Kind : uint8_t { reuse, view };
  int output, input;
  Kind kind;
  bool alone = false;  ///< no other output depends on the input
};
inline constexpr Alias may_reuse(int output, int input) { return {output, input, Alias::Kind::reuse}; }
/// The next version of a statistic, which nothing else that the node computes depends on.
inline constexpr Alias updates_statistic(int output, int input) { return {output, input, Alias::Kind::reuse, /*alone=*/true}; }
inline constexpr Alias is_view(int output, int input) { return {output, input, Alias::Kind::view}; }

/// Floating-point operations, and bytes read and written.
struct Cost {
  double flops = 0, bytes = 0;
};

/// Rewrites one node from one meaning to another: an opset upgrade, or a decomposition into other operators. Edits the graph in place;
/// the node itself may be changed or replaced and removed.
using RewriteNode = void (*)(Graph& graph, NodeId node);

struct UpgradeStep {
  int from;  ///< the since-version whose nodes it takes; it leaves nodes of the next one
  RewriteNode rewrite;
};

enum class ControlFlow : uint8_t { none, if_, loop, scan };

/// Elements keep their order along `axis`: the output is all inputs one after the other, or the outputs are the first input cut up.
enum class Pieces : uint8_t { none, concat, split };

/// An operator that only moves elements: each element of an output is one of an operand.
enum class Moves : uint8_t {
  no,
  in_order,      ///< those of input 0, in their order, under another shape (Reshape)
  anywhere,      ///< in other places, repeated or left out (Transpose, Gather)
  among_others,  ///< beside elements of a further operand, or a constant number (Pad, Where)
};

/// In which dtype float16 and bfloat16 operands are computed where the optimiser may choose (passes/compute_in_float32.cpp).
enum class HalfFloats : uint8_t {
  as_they_are,       ///< it decides by the rounded values, or is not known to gain; what only moves elements follows its operands
  float32,           ///< in float32, among others that are
  float32_by_itself  ///< heavy enough to make the conversion worth while
};

/// What an operator does to quantised values.
enum class Quantisation : uint8_t {
  none,
  quantizes,    ///< QuantizeLinear
  dequantizes,  ///< DequantizeLinear
  chooses,      ///< it moves elements, or takes the largest of some: quantising before or after it is the same. Of input 0; of all inputs
                ///< if it joins them (Pieces::concat)
};

/// How an operator computes the same on images whose channels are innermost (passes/assign_layout.cpp).
struct ChannelsLast {
  enum class How : uint8_t {
    by_element,              ///< as it is, if it is pointwise; otherwise it needs ONNX's order
    first_operand,           ///< as it is: operand 0 is the image, the others hold for all of its elements
    axis,                    ///< with another `axis`
    axes_vector,             ///< with other axes in operand 3 (Slice)
    pads_vector,             ///< with the pads of operand 1 in another order
    numbers_per_axis,        ///< with the numbers of operands 2 and 3 in another order
    reduction,               ///< over other axes; by `op` over all spatial ones, if it has one
    spatial_reduction,       ///< by `op` over all spatial axes
    window,                  ///< by `op`, of the same attributes; by `bytes_op` for images of bytes
    convolution,             ///< by `op`, with constant weights, or of a joint graph
    input_gradient,          ///< by `op`, of a convolution's output gradient, weights and the shape
    weights_gradient,        ///< by `op`, of a convolution's output gradient, image and the weights' shape
    quantised_convolution,   ///< by `op`, with constant weights of int8
    transposed_convolution,  ///< by `op`, with constant weights and windows that do not overlap
    scale_and_shift,         ///< by `op`, of a scale and a shift for each channel, from constants
    statistics_gradient,     ///< by `op`, with the statistics that the node of the forward part keeps
    window_gradient,         ///< by `op`, of the gradient and the image of the pool that gave operand 1, its places
    normalization,           ///< by `op`, of the same operands
    permutation,             ///< it is a permutation of axes itself
    shape,                   ///< it measures
  };
  How how = How::by_element;
  std::string_view op = "";           ///< of the treadle domain; of ONNX's where that has none
  std::string_view bytes_op = "";     ///< of the treadle domain
  std::string_view training_op = "";  ///< likewise; it keeps for the gradient what it needs
};

/// x op number = x, for operands from `first` to 1.
struct NeutralOperand {
  int first = 2;  ///< 2: the operator has none
  double number = 0;
  bool negative_zero = false;  ///< of floats, the zero is -0
};

/// A node as a step of a chain of pointwise operators, and the values that it reads. kNoValue is the number 0.
struct PointwiseStep {
  ElementwiseStep step;
  std::vector<ValueId> operands;
};

/// Steps of a chain that compute the operator of two operands: acc op x, and x op acc.
struct ChainSteps {
  kernels::ChainOp forward{}, reversed{};
  bool given = false;
};

/// What an operator's outputs are the gradients of.
struct Differentiated {
  std::vector<ValueId> ys;  ///< differentiated values
  int first_gradient = 0;   ///< the operand that is the gradient of ys[0]; those of the others follow
  std::span<const int> xs;  ///< for each output the operand that it is the gradient of
};

struct OpDef {
  std::string_view name;
  std::string_view domain = "";
  std::vector<int> since = {};            ///< versions in which the operator's schema changed; the last is the newest
  std::vector<UpgradeStep> upgrade = {};  ///< only steps that change something; other versions read the same
  std::vector<Port> inputs = {}, outputs = {};
  std::vector<AttributeDef> attributes = {};
  void (*infer)(InferContext&) = nullptr;
  Cost (*cost)(const ShapeContext&) = nullptr;
  std::vector<Alias> alias = {};
  std::vector<KernelDef> kernels = {};
  TrainingFunction<std::vector<ValueId>(GradientContext&)> gradient = nullptr;
  /// Of an operator whose kernel computes the gradients of another one: that one, of the node's operands `operands` and by operators whose
  /// rules are differentiable. It is differentiated twice in place of the node once.
  TrainingFunction<Differentiated(GradientContext& g, std::span<const ValueId> operands)> differentiated = nullptr;
  /// Rewrites the node into other operators before anything else sees it (an exact ONNX function body).
  RewriteNode decompose = nullptr;
  /// Inputs whose elements inference or bind() read (axes, shapes, repeats …).
  std::vector<int> value_inputs = {};
  ControlFlow control_flow = ControlFlow::none;
  /// The kernels leave a piece alone that lies where it belongs: in the output's memory, or in the input's.
  Pieces pieces = Pieces::none;
  bool deterministic = true;  ///< false: random numbers; never folded or merged

  /// An operator of the treadle domain that a model's file may name. The others are the optimiser's and the trainer's own.
  bool in_files = false;

  // What passes and planners ask.

  /// An element of the output is a function of the elements at its place, of operands that broadcast.
  bool pointwise = false;
  /// Where input 0 is 0, so is the output, whatever the attributes are; of two operands, if the other is finite and not 0.
  bool keeps_zeros = false;
  Moves moves = Moves::no;
  HalfFloats half = HalfFloats::as_they_are;
  Quantisation quantisation = Quantisation::none;
  ChannelsLast channels_last = {};
  /// It hands values to whoever runs the graph, and takes values back: never removed, folded, merged or given to a backend, and no node
  /// changes sides.
  bool barrier = false;
  /// It hands values to other ranks, or takes theirs.
  bool communicates = false;
  /// The input of which output i is the next version, so that it may be bound to the same memory; -1 for other outputs. The node is ordered
  /// behind all that read the old versions.
  int (*updated_input)(const Node& node, int output) = nullptr;
  NeutralOperand neutral = {};
  /// True if the node gives back input 0 as it is: same dtype, same shape, same elements.
  bool (*returns_input)(const Graph& graph, const Node& node) = nullptr;
  /// The functions of one number that it computes; attributes say which.
  std::span<const ScalarFunction> functions = {};
  /// The node as a step of a chain of pointwise operators; nothing if a chain cannot compute it (other dtypes, computed parameters).
  std::optional<PointwiseStep> (*step)(const Graph& graph, const Node& node) = nullptr;
  ChainSteps chain = {};
  /// The input from which on a node's operands may be those of a chain, the attribute `steps`, that computes this input in the node; -1:
  /// none.
  int chain_input = -1;
  /// Of an operator of the treadle domain: writes it as operators of ONNX, for files. `function_opset` is the oldest opset that has those.
  TrainingFunction<void(FunctionBody& body)> write_function = nullptr;
  TrainingFunction<int(const Node& node)> function_opset = nullptr;
};

/// The registry: every OpDef of the build. Names are ONNX's; the default domain is "" ("ai.onnx" is normalised on import).
const OpDef* find_op(std::string_view domain, std::string_view name);
/// Sorted by domain and name.
std::span<const OpDef> all_ops();
/// The newest opset version of a domain that the build knows; 0 for an unknown domain.
int newest_opset(std::string_view domain);

}  // namespace treadle
