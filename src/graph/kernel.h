// How operators compute. A kernel lives in three steps: create (pack weights, once), bind (shapes → a plain struct), run (pointers only).
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/built_types.h"
#include "graph/graph.h"

namespace treadle {

class ThreadPool;

/// What is known of a node when its shapes are known: attributes, dtypes, shapes. Base of the contexts below.
class ShapeContext {
 public:
  explicit ShapeContext(const Node& node) : node_(node) {}

  const Node& node() const { return node_; }
  int num_inputs() const { return node_.num_formal_inputs; }
  int num_outputs() const { return static_cast<int>(node_.outputs.size()); }
  bool has_input(int i) const { return node_.has_input(static_cast<size_t>(i)); }
  bool has_output(int i) const { return node_.has_output(static_cast<size_t>(i)); }

  const Shape& shape(int input) const { return *shapes_[static_cast<size_t>(input)]; }
  const Shape& output_shape(int output) const { return *shapes_[node_.inputs.size() + static_cast<size_t>(output)]; }
  DType dtype(int input) const { return dtypes_[static_cast<size_t>(input)]; }
  DType output_dtype(int output) const { return dtypes_[node_.inputs.size() + static_cast<size_t>(output)]; }
  int64_t num_elements(int input) const { return shape(input).num_elements(); }
  double size_bytes(int input) const { return static_cast<double>(num_elements(input)) * static_cast<double>(bits_of(dtype(input))) / 8; }

  int64_t get_int(std::string_view name, int64_t otherwise = 0) const { return node_.attributes.get_int(name, otherwise); }
  float get_float(std::string_view name, float otherwise = 0) const { return node_.attributes.get_float(name, otherwise); }
  std::string_view get_string(std::string_view name, std::string_view otherwise = {}) const {
    return node_.attributes.get_string(name, otherwise);
  }
  const std::vector<int64_t>& get_ints(std::string_view name) const { return node_.attributes.get_ints(name); }
  /// The attribute as an axis in [0, rank). @throws Error(invalid_argument) if it is outside [-rank, rank).
  int axis(std::string_view name, int64_t otherwise, int rank) const;

  // Set by whoever makes the context: one entry per input (captures included), then per output; absent operands have the shape of a scalar.
  std::span<const Shape* const> shapes_;
  std::span<const DType> dtypes_;

 protected:
  const Node& node_;
};

/// For `create`: dtypes, attributes, and constant inputs. Shapes are not known yet.
class CreateContext {
 public:
  CreateContext(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}
  const Node& node() const { return node_; }
  const Attributes& attributes() const { return node_.attributes; }
  const Type& type(int input) const;  // unknown for an absent input
  const Type& output_type(int output) const;
  DType dtype(int input) const { return type(input).dtype; }
  DType output_dtype(int output) const { return output_type(output).dtype; }
  bool has_input(int i) const { return node_.has_input(static_cast<size_t>(i)); }
  bool has_output(int i) const { return node_.has_output(static_cast<size_t>(i)); }
  /// The value's; "" for an absent operand. It stays as long as the graph.
  const std::string& input_name(int input) const;
  const std::string& output_name(int output) const;
  /// The elements, where C++ can read them; null unless the input is a constant tensor.
  const Tensor* constant(int input) const;
  /// The same where it lies: a large tensor of a file may stand at any address, and constant() copies it for as long as this object lives.
  const Tensor* stored(int input) const;

 private:
  const Graph& graph_;
  const Node& node_;
  mutable std::map<int, Tensor> aligned_;
};

/// A block of plain elements of a PackedState, as a compiled model's file keeps it. `id` tells the state's blocks apart.
struct PackedPart {
  int32_t id = 0;
  Tensor tensor;
};

/// What `create` made for a node: packed weights and the like. Shared by all bindings.
struct PackedState {
  virtual ~PackedState() = default;
  virtual size_t size_bytes() const { return 0; }   // memory beyond the weights themselves
  virtual std::string forms() const { return {}; }  // which forms these are, for people: "F(4,3)"
  /// All of it as blocks that KernelDef::restore makes an equal state of. Empty: it can only be created again.
  virtual std::vector<PackedPart> parts() const { return {}; }
};

/// For `bind`: shapes are known. Must not allocate.
class BindContext : public ShapeContext {
 public:
  using ShapeContext::ShapeContext;

  /// Elements of an input, where they are known before the run: constants, and what shapes determine; for an instruction that is bound
  /// in the run, all of them. Null otherwise. Inputs listed in OpDef::value_inputs are never null if present.
  const Tensor* value(int input) const { return values_[static_cast<size_t>(input)]; }
  /// Integer elements (int32 or int64) of value(input). @throws Error(invalid_argument) if it has another dtype.
  int64_t value_at(int input, int64_t index) const;
  int64_t value_count(int input) const { return value(input) ? value(input)->num_elements() : 0; }
  /// Memory that run() gets as scratch(), aligned to a cache line.
  void request_scratch(size_t bytes) { scratch_bytes_ = bytes; }
  size_t scratch_bytes() const { return scratch_bytes_; }
  int max_threads() const { return max_threads_; }
  template <typename P>
  const P& packed() const {
    return static_cast<const P&>(*packed_);
  }

  /// Elements from one row, a run along the last axis, to the next one: the last extent, unless the operand is a part of another value's
  /// rows. Only operands of KernelDef::strided_inputs and strided_outputs ever are.
  int64_t input_step(int input) const { return step(static_cast<size_t>(input), shape(input)); }
  int64_t output_step(int output) const { return step(node_.inputs.size() + static_cast<size_t>(output), output_shape(output)); }

  std::span<const Tensor* const> values_;
  std::span<const int64_t> steps_;  // per operand, 0 where rows follow each other; empty if all do
  const PackedState* packed_ = nullptr;
  int max_threads_ = 1;

 private:
  int64_t step(size_t operand, const Shape& shape) const {
    const int64_t own = operand < steps_.size() ? steps_[operand] : 0;
    return own != 0 || shape.rank() == 0 ? own : shape[shape.rank() - 1];
  }
  size_t scratch_bytes_ = 0;
};

/// What an instruction that is bound in the run (data-dependent shapes, sequences, strings) reads and writes besides pointers.
class DynamicOperands {
 public:
  virtual ~DynamicOperands() = default;
  virtual const Datum& input(int i) const = 0;
  virtual Tensor allocate_output(int i, const Shape& shape) = 0;
  virtual void set_output(int i, Datum datum) = 0;
};

/// For `run`: pointers only. Allocates nothing, looks nothing up.
class RunContext {
 public:
  RunContext(void* const* operands, int num_inputs, int num_outputs, void* scratch, ThreadPool* pool, const PackedState* packed)
      : operands_(operands), num_inputs_(num_inputs), num_outputs_(num_outputs), scratch_(scratch), pool_(pool), packed_(packed) {}

  /// Null for an absent operand, also for one beyond the node's last input.
  template <typename T>
  const T* in(int i) const {
    return i < num_inputs_ ? static_cast<const T*>(operands_[i]) : nullptr;
  }
  /// Null for an optional output that the node does not have.
  template <typename T>
  T* out(int i) const {
    return i < num_outputs_ ? static_cast<T*>(operands_[num_inputs_ + i]) : nullptr;
  }
  template <typename T>
  T* scratch() const {
    return static_cast<T*>(scratch_);
  }
  ThreadPool* pool() const { return pool_; }
  template <typename P>
  const P& packed() const {
    return static_cast<const P&>(*packed_);
  }

  /// For kernels whose output shapes inference cannot know: room for output i; the pointer is the tensor's.
  Tensor allocate_output(int i, const Shape& shape) const { return dynamic_->allocate_output(i, shape); }
  /// For kernels over sequences, optionals, maps and sparse tensors.
  const Datum& input(int i) const { return dynamic_->input(i); }
  void set_output(int i, Datum datum) const { dynamic_->set_output(i, std::move(datum)); }

  /// Counter that differs between runs and between nodes: randomness is a function of (seed, node, run, element).
  uint64_t run_id = 0;
  DynamicOperands* dynamic_ = nullptr;

 private:
  void* const* operands_;
  int num_inputs_, num_outputs_;
  void* scratch_;
  ThreadPool* pool_;
  const PackedState* packed_;
};

/// One way to compute an operator. Made by `kernel<K>()`; best first in OpDef::kernels.
struct KernelDef {
  std::string_view name = "plain";
  /// dtype of the operand that decides (see `dtype_operand`); undefined: any.
  DType dtype = DType::undefined;
  int dtype_operand = 0;  ///< an input; -1 - k for output k
  /// Its outputs' shapes or kinds are known only in the run: it calls allocate_output or set_output for every output.
  bool allocates = false;
  size_t state_bytes = 0, state_alignment = 1;
  /// Bit i: `create` copied what it needs of a constant input i, and neither bind() nor run() reads it.
  uint32_t packs = 0;
  /// What `create` makes depends on the node's attributes, types and constants only, and never changes what it computes: nodes of several
  /// programs may have it in common. Kernels that pack are such.
  bool shares_packed = false;
  /// Bit i: the kernel asks BindContext where the rows of operand i lie, so that it may be a part of another value's rows. The last bit
  /// stands for all operands from there on.
  uint32_t strided_inputs = 0, strided_outputs = 0;
  /// Empty if the kernel takes the node, else the reason why not.
  std::string (*declines)(const CreateContext&) = nullptr;
  std::unique_ptr<PackedState> (*create)(const CreateContext&) = nullptr;
  /// The same state from the blocks that PackedState::parts() gave, used in place. They come from a file and may be anything: null if they
  /// do not have the sizes that the node's types ask for. Of the constants that `packs` names only types and shapes are there.
  std::unique_ptr<PackedState> (*restore)(const CreateContext&, std::span<const PackedPart>) = nullptr;
  void (*bind)(void* state, BindContext&) = nullptr;
  void (*run)(const void* state, RunContext&) = nullptr;
};

/// Makes a KernelDef from a struct K, which is the bound state:
///   static K bind(BindContext&);           // settles what depends on shapes
///   void run(RunContext&) const;           // computes
/// and, if it wants,
///   static std::string declines(const CreateContext&);
///   static std::unique_ptr<PackedState> create(const CreateContext&);
///   static std::unique_ptr<PackedState> restore(const CreateContext&, std::span<const PackedPart>);
///   static constexpr bool allocates = true;
///   static constexpr uint32_t packs = 1U << 1;  // input 1
///   static constexpr bool shares_packed = true;  // implied by packs
///   static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;  // input 0 and output 0
template <typename K>
KernelDef kernel(std::string_view name = "plain", DType dtype = DType::undefined, int dtype_operand = 0) {
  static_assert(std::is_trivially_destructible_v<K> && std::is_trivially_copyable_v<K>, "bound state is plain data");
  static_assert(alignof(K) <= alignof(std::max_align_t));
  KernelDef def;
  def.name = name;
  def.dtype = dtype;
  def.dtype_operand = dtype_operand;
  def.state_bytes = sizeof(K);
  def.state_alignment = alignof(K);
  if constexpr (requires { K::allocates; }) def.allocates = K::allocates;
  if constexpr (requires { K::packs; }) def.packs = K::packs;
  def.shares_packed = def.packs != 0;
  if constexpr (requires { K::shares_packed; }) def.shares_packed = K::shares_packed;
  if constexpr (requires { K::strided_inputs; }) def.strided_inputs = K::strided_inputs;
  if constexpr (requires { K::strided_outputs; }) def.strided_outputs = K::strided_outputs;
  if constexpr (requires(const CreateContext& c) { K::declines(c); }) def.declines = &K::declines;
  if constexpr (requires(const CreateContext& c) { K::create(c); }) def.create = &K::create;
  if constexpr (requires(const CreateContext& c) { K::restore(c, std::span<const PackedPart>{}); }) def.restore = &K::restore;
  def.bind = [](void* state, BindContext& c) { new (state) K(K::bind(c)); };
  def.run = [](const void* state, RunContext& c) { static_cast<const K*>(state)->run(c); };
  return def;
}

/// The kernel for elements of T; none if they are not built.
template <typename K, typename T>
std::vector<KernelDef> built_kernel(std::string_view name = "plain", int dtype_operand = 0) {
  if constexpr (kIsBuilt<T>)
    return {kernel<K>(name, dtype_of<T>, dtype_operand)};
  else
    return {};
}

/// make.operator()<T>(), a kernel, for each of the types that are built.
template <typename... Ts, typename Make>
std::vector<KernelDef> kernels_of(Make make) {
  std::vector<KernelDef> made;
  made.reserve(sizeof...(Ts));
  auto add = [&]<typename T>() {
    if constexpr (kIsBuilt<T>) made.push_back(make.template operator()<T>());
  };
  (add.template operator()<Ts>(), ...);
  return made;
}

/// One kernel per element type of input 0: `typed<Add, float, double, int64_t>()`.
template <template <typename> class K, typename... Ts>
std::vector<KernelDef> typed(std::string_view name = "plain", int dtype_operand = 0) {
  return kernels_of<Ts...>([&]<typename T>() { return kernel<K<T>>(name, dtype_of<T>, dtype_operand); });
}

inline std::vector<KernelDef> operator+(std::vector<KernelDef> a, const std::vector<KernelDef>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The first kernel of the node's operator that takes it. @throws Error(not_implemented) listing every kernel with its reason.
const KernelDef& select_kernel(const Graph& graph, const Node& node);

}  // namespace treadle
