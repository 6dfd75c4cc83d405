// The packed constant weights of convolutions on images with channels last.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files/file.h"
#include "core/values/large_memory.h"
#include "graph/kernel.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/nhwc_bf16.h"
#include "ops/packed_parts.h"

namespace treadle::ops {

/// A node's weights in packed layouts, called forms: one per convolution method. The image's extents determine the method; its form is made
/// at first use. The original weights are kept only while a form reads them (Winograd) or none can restore them.
class NhwcPacked final : public PackedState {
 public:
  /// @param weights  the original weights, which may be unaligned
  explicit NhwcPacked(Tensor weights) : weights_(std::move(weights)) {}

  /// Stands for the only form (packed layout) of a transposed convolution's weights. Other convolutions have one form per method.
  static constexpr auto kTransposed = kernels::NhwcMethod{0};

  struct Form {
    const float* packed;
    const float* weights;  ///< only for Winograd's method: the original weights, maybe unaligned; else null
  };
  Form conv(const kernels::ConvParams& p, kernels::NhwcMethod method) const {
    std::lock_guard lock(mutex_);
    Tensor& form = forms_[static_cast<size_t>(method)];
    if (!form.defined()) {
      restore(p);
      Tensor fresh = room(kernels::nhwc_packed_size(p, method));
      kernels::nhwc_pack(p, method, reinterpret_cast<const float*>(weights_.raw()), fresh.data<float>());
      form = std::move(fresh);
      drop_mapped_pages(weights_.raw(), weights_.size_bytes());
      if (!forms_[static_cast<size_t>(kernels::NhwcMethod::winograd4)].defined() &&
          !forms_[static_cast<size_t>(kernels::NhwcMethod::winograd2)].defined())
        weights_ = Tensor();
    }
    return {form.data<float>(), kernels::is_winograd(method) ? reinterpret_cast<const float*>(weights_.raw()) : nullptr};
  }
  const uint32_t* conv_bf16(const kernels::ConvParams& p, kernels::Bf16Form form) const {
    std::lock_guard lock(mutex_);
    if (!bf16_.defined()) {
      restore(p);
      bf16_ = room(kernels::nhwc_bf16_packed_size(p, form));
      kernels::nhwc_bf16_pack(p, form, reinterpret_cast<const float*>(weights_.raw()), reinterpret_cast<uint32_t*>(bf16_.data<float>()));
      drop_mapped_pages(weights_.raw(), weights_.size_bytes());
      // With bfloat16x3, an image of other extents may be computed by Winograd's method, which needs the original weights.
      if (form != kernels::Bf16Form::three || kernels::nhwc_methods(p).size() == 1) weights_ = Tensor();
    }
    return reinterpret_cast<const uint32_t*>(bf16_.data<float>());
  }
  const float* transposed(const kernels::ConvParams& p) const {
    std::lock_guard lock(mutex_);
    Tensor& form = forms_[static_cast<size_t>(kTransposed)];
    if (!form.defined()) {
      Tensor fresh = room(kernels::nhwc_transposed_packed_size(p));
      const Tensor aligned = is_aligned(weights_) ? weights_ : weights_.clone();
      kernels::nhwc_transposed_pack(p, aligned.data<float>(), fresh.data<float>());
      form = std::move(fresh);
      drop_mapped_pages(weights_.raw(), weights_.size_bytes());
      weights_ = Tensor();
    }
    return form.data<float>();
  }
  /// Returns the packed weights to store in a compiled file. Omits the bfloat16 copy: kernels that use it are not restored from files.
  std::vector<PackedPart> parts() const override {
    std::lock_guard lock(mutex_);
    std::vector<PackedPart> parts;
    if (weights_.defined()) parts.push_back({kWeights, weights_});
    for (int32_t method = 0; method < kernels::kNhwcMethods; ++method)
      if (forms_[method].defined()) parts.push_back({method, forms_[method]});
    return parts;
  }
  /// Restores the packed weights from a compiled file; null if they do not fit the convolution.
  /// @param shape    shape of the original weights
  /// @param size_of  returns the number of floats of the weights packed for a method; -1 if the convolution cannot use the method
  template <typename SizeOf>
  static std::unique_ptr<PackedState> restore(std::span<const PackedPart> parts, const Shape& shape, SizeOf size_of) {
    auto state = std::make_unique<NhwcPacked>(Tensor());
    for (const PackedPart& part : parts) {
      const Tensor* found = find_part(parts, part.id, DType::float32);
      if (!found || part.id < 0 || part.id > kWeights) return nullptr;
      if (part.id == kWeights && found->num_elements() == shape.num_elements())
        state->weights_ = *found;
      else if (part.id < kWeights && found->num_elements() == size_of(static_cast<kernels::NhwcMethod>(part.id)))
        state->forms_[part.id] = *found;
      else
        return nullptr;
    }
    // Runs may need weights packed for any method, so there must be the original weights, or a form from which they can be restored.
    const bool whole = state->weights_.defined() || state->forms_[static_cast<size_t>(kernels::NhwcMethod::direct)].defined() ||
                       state->forms_[static_cast<size_t>(kernels::NhwcMethod::depthwise)].defined();
    return whole ? std::move(state) : nullptr;
  }
  size_t size_bytes() const override {
    std::lock_guard lock(mutex_);
    size_t bytes = bf16_.defined() ? bf16_.size_bytes() : 0;
    for (const Tensor& form : forms_) bytes += form.defined() ? form.size_bytes() : 0;
    return bytes;
  }

  std::string forms() const override {
    std::lock_guard lock(mutex_);
    std::string text;
    for (int32_t method = 0; method < kernels::kNhwcMethods; ++method)
      if (forms_[method].defined())
        text += (text.empty() ? "" : ", ") + std::string(nhwc_method_name(static_cast<kernels::NhwcMethod>(method)));
    return text;
  }

 private:
  static constexpr int32_t kWeights = kernels::kNhwcMethods;
  static Tensor room(int64_t size) {
    return Tensor(DType::float32, Shape{size}, allocate_large(static_cast<size_t>(size) * sizeof(float)));
  }
  // Restores the original weights of a convolution if they were freed.
  void restore(const kernels::ConvParams& p) const {
    if (weights_.defined()) return;
    const kernels::NhwcMethod from =
        forms_[static_cast<size_t>(kernels::NhwcMethod::direct)].defined() ? kernels::NhwcMethod::direct : kernels::NhwcMethod::depthwise;
    Tensor fresh = room(p.M * (p.C / p.group) * p.window.kernel_size());
    kernels::nhwc_unpack(p, from, forms_[static_cast<size_t>(from)].data<float>(), fresh.data<float>());
    weights_ = std::move(fresh);
  }

  mutable Tensor weights_;
  mutable std::mutex mutex_;
  mutable Tensor forms_[kernels::kNhwcMethods];
  mutable Tensor bf16_;  // 32-bit words with two bfloat16 numbers each
};

/// The weights of two consecutive convolutions, packed when the session is created: their packed layout does not depend on the image.
class NhwcPackedPair final : public PackedState {
 public:
  NhwcPackedPair(Tensor first, Tensor depthwise) : first_(std::move(first)), depthwise_(std::move(depthwise)) {}
  const float* first() const { return first_.data<float>(); }
  const float* depthwise() const { return depthwise_.data<float>(); }
  std::vector<PackedPart> parts() const override { return {{0, first_}, {1, depthwise_}}; }
  static std::unique_ptr<PackedState> restore(std::span<const PackedPart> parts, int64_t first_size, int64_t depthwise_size) {
    const Tensor *first = find_part(parts, 0, DType::float32), *depthwise = find_part(parts, 1, DType::float32);
    if (!first || !depthwise || first->num_elements() != first_size || depthwise->num_elements() != depthwise_size) return nullptr;
    return std::make_unique<NhwcPackedPair>(*first, *depthwise);
  }
  size_t size_bytes() const override { return first_.size_bytes() + depthwise_.size_bytes(); }

 private:
  Tensor first_, depthwise_;
};

}  // namespace treadle::ops
