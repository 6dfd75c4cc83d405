// Helpers for operators that move elements: copies for any dtype, including strings and packed types, and arithmetic on extents.
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

/// Gives access to element i of an array, by the kind of elements: whole bytes, strings, or packed codes.
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

/// Calls fn.template operator()<Access>() with the dtype's Access.
template <typename Fn>
void visit_access(DType dtype, Fn&& fn) {
  if (dtype == DType::string) return fn.template operator()<WholeElement<std::string>>();
  switch (bits_of(dtype)) {
    case 2: return fn.template operator()<PackedElement<UInt2>>();
    case 4: return fn.template operator()<PackedElement<UInt4>>();
    case 6: return fn.template operator()<PackedElement<PackedFloat6E2M3>>();  // codes of the other 6-bit format have the same size
    default: return kernels::visit_element(bits_of(dtype) / 8, [&]<typename T>() { fn.template operator()<WholeElement<T>>(); });
  }
}

/// Returns true for dtypes whose elements are 1, 2, 4, 8 or 16 plain bytes.
inline bool has_plain_bytes(DType dtype) { return dtype != DType::string && !is_sub_byte(dtype); }
/// Returns the bytes of an element. @pre has_plain_bytes(dtype)
inline int64_t element_bytes(DType dtype) { return static_cast<int64_t>(bits_of(dtype) / 8); }

/// Returns true if `part` is the address of element `offset` of `whole`.
inline bool lies_at(const void* part, DType dtype, const void* whole, int64_t offset) {
  if (offset == 0) return part == whole;
  return has_plain_bytes(dtype) && part == static_cast<const std::byte*>(whole) + offset * element_bytes(dtype);
}

/// Executes a copy plan. Offsets are in elements. Source and destination must not overlap.
void move_elements(const kernels::CopyPlan& plan, DType dtype, const void* src, int64_t src_offset, void* dst, int64_t dst_offset,
                   ThreadPool* pool);
/// Copies n elements. Does nothing if both are the same array.
void copy_elements(DType dtype, const void* src, void* dst, int64_t n, ThreadPool* pool);
/// Copies `count` blocks of `length` elements. Pitches are the distances between blocks, in elements.
void move_blocks(DType dtype, int64_t count, int64_t length, const void* src, int64_t src_offset, int64_t src_pitch, void* dst,
                 int64_t dst_offset, int64_t dst_pitch, ThreadPool* pool);

/// Copies input 0 to output 0, element by element, for operators whose output cannot be a view.
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

/// Returns max(dim, 0), which is dim itself if dim is known to be at least 0.
inline Dim at_least_zero(const Dim& dim) { return is_nonnegative(dim) ? dim : maximum(dim, 0); }
/// Returns min(dim, limit), which is dim itself if dim is known to be at most `limit`.
inline Dim at_most(const Dim& dim, const Dim& limit) { return is_nonnegative(limit - dim) ? dim : minimum(dim, limit); }

/// Merges the extents of two operands that must be equal. @throws Error(invalid_argument) naming `what` if two integers differ.
Dim unify(const Dim& a, const Dim& b, std::string_view what);

/// Returns the number of elements of a 1-D input with extents or axes; nullopt if it is no constant. @throws Error(invalid_argument) above
/// kMaxRank, so that a number in a file does not determine how much memory is used.
std::optional<int64_t> known_length(InferContext& c, int input);
/// Copies the known elements of input 0 to output 0, for operators that change only the shape.
inline void keep_known(InferContext& c) {
  if (auto values = c.known(0)) c.set_known(0, std::move(*values));
}

/// An upgrade step: replaces an integer-list attribute by a constant int64 input.
void ints_to_input(Graph& graph, NodeId id, std::string_view attribute, int input);
/// Replaces a node by one of another type, with the same inputs, outputs and attributes.
NodeId replace_node(Graph& graph, NodeId id, NodeSpec spec);

/// Implements OpDef::returns_input for operators that keep the order of elements: returns true if they keep the shape, too. Equal
/// expressions of symbols are equal in every run.
bool keeps_type_and_shape(const Graph& graph, const Node& node);
/// Returns true for an int64 or int32 constant whose elements all equal `number`.
bool all_integers_are(const Graph& graph, ValueId id, int64_t number);

}  // namespace treadle::ops
