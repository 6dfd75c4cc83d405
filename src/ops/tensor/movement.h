// Helpers for operators that move elements: copies for all dtypes, including strings and packed types, and arithmetic on extents.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/values/float_types.h"
#include "graph/infer.h"
#include "graph/kernel.h"
#include "kernels/movement/copy.h"
#include "kernels/movement/element.h"
#include "ops/checks.h"

namespace treadle::ops {

/// Copies and reads element i of an array. Three classes do this: for elements of whole bytes, strings and packed codes.
template <typename T>
struct WholeElement {
  static constexpr bool kPacked = false;
  static void copy(void* dst, int64_t to, const void* src, int64_t from) { static_cast<T*>(dst)[to] = static_cast<const T*>(src)[from]; }
};
template <typename Packed>
struct PackedElement {
  static constexpr bool kPacked = true;
  static void copy(void* dst, int64_t to, const void* src, int64_t from) { Packed::set_packed(dst, to, Packed::get_packed(src, from)); }
};

/// Calls fn.template operator()<Access>(), where Access is the class above for the dtype.
template <typename Fn>
void visit_access(DType dtype, Fn&& fn) {
  if (dtype == DType::string) return fn.template operator()<WholeElement<std::string>>();
  switch (bits_of(dtype)) {
    case 2: return fn.template operator()<PackedElement<UInt2>>();
    case 4: return fn.template operator()<PackedElement<UInt4>>();
    case 6: return fn.template operator()<PackedElement<PackedFloat6E2M3>>();  // also for the other 6-bit format
    default: return kernels::visit_element(bits_of(dtype) / 8, [&]<typename T>() { fn.template operator()<WholeElement<T>>(); });
  }
}

/// Returns true for dtypes whose elements are 1, 2, 4, 8 or 16 plain bytes.
inline bool has_plain_bytes(DType dtype) { return dtype != DType::string && !is_sub_byte(dtype); }
/// Returns the number of bytes of an element. @pre has_plain_bytes(dtype)
inline int64_t element_bytes(DType dtype) { return static_cast<int64_t>(bits_of(dtype) / 8); }

/// Returns true if `part` is the address of element `offset` of `whole`.
inline bool lies_at(const void* part, DType dtype, const void* whole, int64_t offset) {
  if (offset == 0) return part == whole;
  return has_plain_bytes(dtype) && part == static_cast<const std::byte*>(whole) + offset * element_bytes(dtype);
}

/// Copies elements as the plan describes. Offsets are in elements. Source and destination must not overlap.
void move_elements(const kernels::CopyPlan& plan, DType dtype, const void* src, int64_t src_offset, void* dst, int64_t dst_offset,
                   ThreadPool* pool);
/// Copies n elements. Does nothing if `src` and `dst` are the same array.
void copy_elements(DType dtype, const void* src, void* dst, int64_t n, ThreadPool* pool);
/// Copies `count` blocks of `length` elements. A pitch is the distance from one block to the next, in elements.
void move_blocks(DType dtype, int64_t count, int64_t length, const void* src, int64_t src_offset, int64_t src_pitch, void* dst,
                 int64_t dst_offset, int64_t dst_pitch, ThreadPool* pool);

/// The kernel of operators that copy input 0 to output 0 because their output cannot be a view.
struct CopyAll {
  DType dtype;
  int64_t count;
  static CopyAll bind(BindContext& c) {
    check_equal(c.num_elements(0), c.output_shape(0).num_elements(), "elements of the input and of the output");
    return {c.dtype(0), c.num_elements(0)};
  }
  void run(RunContext& c) const { copy_elements(dtype, c.in<void>(0), c.out<void>(0), count, c.pool()); }
};

/// Returns the cost of reading input 0 and writing output 0 once.
Cost move_cost(const ShapeContext& c);

/// Returns max(dim, 0). This is `dim` itself if it is known to be nonnegative.
inline Dim at_least_zero(const Dim& dim) { return is_nonnegative(dim) ? dim : maximum(dim, 0); }
/// Returns min(dim, limit). This is `dim` itself if it is known to be at most `limit`.
inline Dim at_most(const Dim& dim, const Dim& limit) { return is_nonnegative(limit - dim) ? dim : minimum(dim, limit); }

/// Returns the common extent of two operands that must have equal extents. @throws Error(invalid_argument) naming `what` if both are
/// different integers.
Dim unify(const Dim& a, const Dim& b, std::string_view what);

/// Returns the number of elements of a 1-D input that has extents or axes; nullopt if it is unknown before the run. Above kMaxRank it
/// throws Error(invalid_argument), so that a number in a file cannot make it allocate much memory.
std::optional<int64_t> known_length(InferContext& c, int input);
/// Copies the elements of input 0 that are known before the run to output 0, for operators that only change the shape.
inline void keep_known(InferContext& c) {
  if (auto values = c.known(0)) c.set_known(0, std::move(*values));
}

/// An upgrade step: replaces an integer-list attribute by a constant int64 input.
void ints_to_input(Graph& graph, NodeId id, std::string_view attribute, int input);
/// Replaces a node by one of another type, with the same inputs, outputs and attributes.
NodeId replace_node(Graph& graph, NodeId id, NodeSpec spec);

/// Implements OpDef::returns_input for operators that keep the order of elements: returns true if they also keep the shape. Shapes are
/// equal if their symbolic expressions are.
bool keeps_type_and_shape(const Graph& graph, const Node& node);
/// Returns true for an int64 or int32 constant whose elements all equal `number`.
bool all_integers_are(const Graph& graph, ValueId id, int64_t number);

}  // namespace treadle::ops
