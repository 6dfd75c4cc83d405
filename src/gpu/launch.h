// Shared by all GPU kernels: push constants, the sizes of dispatches, matrix products, and the functions that find kernels.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "device/vulkan/vulkan_device.h"
#include "graph/kernel_table.h"
#include "kernels/conv/window.h"

namespace treadle::gpu {

/// The push constants of a dispatch. They must be appended in the order in which the shader declares them.
class Push {
 public:
  Push& pointer(const void* address) { return add(reinterpret_cast<uint64_t>(address)); }
  /// Appends the address to which a shader writes a fault; its number is a word.
  Push& fault(const vulkan::VulkanStream::FaultSite& site) { return add(site.address); }
  template <typename T>
    requires(sizeof(T) == 4)
  Push& word(T value) {
    return add(value);
  }
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  template <typename T>
  Push& add(T value) {
    std::memcpy(bytes_.data() + size_, &value, sizeof(T));
    size_ += sizeof(T);
    return *this;
  }
  std::array<std::byte, vulkan::kMaxPushBytes> bytes_{};
  size_t size_ = 0;
};

inline void push_sizes(Push& push, std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) push.word(static_cast<uint32_t>(size));
}

/// Returns the stream on which the calling thread runs a kernel.
inline vulkan::VulkanStream& stream() { return *vulkan::VulkanStream::current(); }

/// The state of a kernel whose shaders find faults. Errors name the node.
struct FaultState : PackedState {
  std::string node;
  vulkan::VulkanStream::FaultSite fault(std::string_view what) const { return stream().fault_site(fmt::format("{}: {}", node, what)); }
};

/// Returns the work groups of a dispatch that has an invocation per element: groups of kGroupSize invocations, in rows of kGroupsInRow.
std::array<uint32_t, 3> groups_over(uint32_t num_elements);

/// Returns the work groups of a dispatch that has `count` work groups, in rows of kGroupsInRow.
std::array<uint32_t, 3> groups_for(int64_t count);

/// Returns a number of elements in 32 bits, as shaders count them. @throws Error(not_implemented) if it is too large
uint32_t count32(int64_t num_elements);

/// Returns a number such as a stride or a pad in 32 bits, as shaders use it. @throws Error(not_implemented) if it is too large
int32_t signed32(int64_t number);

/// The arguments of `batch` matrix products Y = alpha A B + beta C. `a_row` is the distance, in elements, from one row of A to the next,
/// `a_column` that from one column to the next; B and C have the same members. `a_step` and `b_step` are the distances from the matrix of
/// one product to that of the next.
struct ProductCall {
  void* y = nullptr;
  const void *a = nullptr, *b = nullptr, *c = nullptr;  ///< c is used only if has_c
  bool has_c = false;
  int64_t rows = 0, columns = 0, terms = 0;
  int64_t a_row = 0, a_column = 1, b_row = 1, b_column = 0, c_row = 0, c_column = 0;
  int64_t batch = 1, a_step = 0, b_step = 0;  ///< `batch` must not exceed the limit of a dispatch's third dimension
  float alpha = 1, beta = 1;
  std::array<const void*, 3> operands = {};  ///< operands of the epilogue, the operators after the product
};
/// @param shader  product.comp, compiled for the dtype of the elements
void dispatch_product(const vulkan::Shader& shader, const ProductCall& call);

/// Converts elements as Cast does. Returns the address of the result: `dst`, or `src` if the dtypes are equal.
const void* convert_elements(DType from, const void* src, DType to, void* dst, int64_t count);

/// Limit for the number of dimensions of the index space in shaders that ShaderWriter writes.
inline constexpr int kMaxSpaceRank = 8;
/// Appends arrays of three numbers, one per axis of a window, such as its extents. @throws Error(not_implemented) as signed32() does
void push_window(Push& push, std::initializer_list<const int64_t (*)[3]> numbers);
/// Appends a window's extents, kernel, strides, dilations and begin pads, for shaders with two spatial axes.
void push_plane(Push& push, const kernels::Window& window);
/// @throws Error(not_implemented) beyond kMaxSpaceRank
void check_space_rank(int rank);
/// Appends extents 1 to rank - 1 of a loop, as shaders of ShaderWriter read them. @throws Error as check_space_rank() does
void push_extents(Push& push, int rank, const int64_t* dims);

/// Each function below returns the GPU kernel of a node in its family of operators; an empty one if the node is in another family or not
/// supported.
DeviceKernel find_pointwise(const Graph& graph, const Node& node);
DeviceKernel find_product(const Graph& graph, const Node& node);   ///< MatMul, Gemm and Conv, also with a chain after them; ConvTranspose
DeviceKernel find_movement(const Graph& graph, const Node& node);  ///< Transpose, Slice, Concat and others that only copy elements
DeviceKernel find_gather(const Graph& graph, const Node& node);
DeviceKernel find_recurrent(const Graph& graph, const Node& node);
DeviceKernel find_resampling(const Graph& graph, const Node& node);  ///< Pad, CenterCropPad, Resize, Range
DeviceKernel find_trees(const Graph& graph, const Node& node);
DeviceKernel find_linear(const Graph& graph, const Node& node);  ///< LinearClassifier, LinearRegressor, Normalizer
DeviceKernel find_svm(const Graph& graph, const Node& node);
DeviceKernel find_columns(const Graph& graph, const Node& node);    ///< Scaler, Imputer, Binarizer
DeviceKernel find_encoder(const Graph& graph, const Node& node);    ///< LabelEncoder, OneHotEncoder
DeviceKernel find_quantized(const Graph& graph, const Node& node);  ///< products of 8-bit integers, DynamicQuantizeLinear
DeviceKernel find_blocked(const Graph& graph, const Node& node);    ///< products with weights of 4 or 8 bits
DeviceKernel find_found(const Graph& graph, const Node& node);      ///< NonZero, Compress, Unique, NonMaxSuppression
DeviceKernel find_clip(const Graph& graph, const Node& node);
DeviceKernel find_integers(const Graph& graph, const Node& node);  ///< Div, Mod, BitShift
DeviceKernel find_top_k(const Graph& graph, const Node& node);
DeviceKernel find_scatter(const Graph& graph, const Node& node);
DeviceKernel find_placing(const Graph& graph, const Node& node);        ///< cumulative sums, OneHot, Trilu, functions of float64
DeviceKernel find_volume(const Graph& graph, const Node& node);         ///< 3-D convolutions
DeviceKernel find_attention(const Graph& graph, const Node& node);      ///< Attention and RotaryEmbedding
DeviceKernel find_cache(const Graph& graph, const Node& node);          ///< positions in key and value caches, and updates of these
DeviceKernel find_gathered_rows(const Graph& graph, const Node& node);  ///< gradients of the table rows that a Gather read
DeviceKernel find_sampling(const Graph& graph, const Node& node);       ///< GridSample, RoiAlign, DeformConv and the like
DeviceKernel find_random(const Graph& graph, const Node& node);
DeviceKernel find_determinant(const Graph& graph, const Node& node);
DeviceKernel find_narrow(const Graph& graph, const Node& node);  ///< Cast from and to small floats and packed integers
DeviceKernel find_fourier(const Graph& graph, const Node& node);
DeviceKernel find_dropout(const Graph& graph, const Node& node);
DeviceKernel find_gradient(const Graph& graph,
                           const Node& node);                    ///< gradients; training losses and normalizations; MaxPool with indices
DeviceKernel find_update(const Graph& graph, const Node& node);  ///< updates of parameters by optimizers, and of a trainer's state
DeviceKernel find_row_kernel(const Graph& graph, const Node& node);  ///< reductions, softmax, normalizations, pools

}  // namespace treadle::gpu
