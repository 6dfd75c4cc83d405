// What the runtime knows of an operator: one OpDef in its family's file under ops/.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"

namespace treadle {

class InferContext;
class GradientContext;

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

/// A formal input or output. Ports with the same `type_name` ("T") must have the same dtype (kind and dtype for non-tensors).
struct Port {
  std::string_view name;
  TypeSet types;
  std::string_view type_name = "";
  Presence presence = Presence::required;
};

struct AttributeDef {
  struct Required {};
  struct NoDefault {};
  std::string_view name;
  /// The default, whose type is the attribute's; or Required / NoDefault with the type as `type_index` of Attribute.
  std::variant<NoDefault, Required, int64_t, float, std::string_view> value = NoDefault{};
};

/// How an output may share bytes with an input. `view`: same bytes, same order, nothing is computed (Reshape).
/// `reuse`: the kernel may write over the input while it reads it, if nobody else needs the input any more.
struct Alias {
  enum class Kind : uint8_t { reuse, view };
  int output, input;
  Kind kind;
};
inline constexpr Alias may_reuse(int output, int input) { return {output, input, Alias::Kind::reuse}; }
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
  std::vector<ValueId> (*gradient)(GradientContext&) = nullptr;
  /// Rewrites the node into other operators before anything else sees it (an exact ONNX function body).
  RewriteNode decompose = nullptr;
  /// Inputs whose elements inference or bind() read (axes, shapes, repeats …).
  std::vector<int> value_inputs = {};
  ControlFlow control_flow = ControlFlow::none;
  /// The kernels leave a piece alone that lies where it belongs: in the output's memory, or in the input's.
  Pieces pieces = Pieces::none;
  bool deterministic = true;  ///< false: random numbers; never folded or merged
};

/// The registry: every OpDef of the build. Names are ONNX's; the default domain is "" ("ai.onnx" is normalised on import).
const OpDef* find_op(std::string_view domain, std::string_view name);
/// Sorted by domain and name.
std::span<const OpDef> all_ops();
/// The newest opset version of a domain that the build knows; 0 for an unknown domain.
int newest_opset(std::string_view domain);

}  // namespace treadle
