// The packed weights of a convolution with channels innermost.
#pragma once

#include <mutex>
#include <utility>

#include "core/file.h"
#include "core/large_memory.h"
#include "graph/kernel.h"
#include "kernels/conv/nhwc.h"
#include "kernels/conv/nhwc_bf16.h"
#include "treadle/tensor.h"

namespace treadle::ops {

/// The packed forms of a node's weights, each made when an image first asks for it. Which one that is depends on the image's extents.
/// The weights themselves are let go as soon as they can be had from a packed form.
class PackedConv final : public PackedState {
 public:
  /// @param weights  may stand at any address
  explicit PackedConv(Tensor weights) : weights_(std::move(weights)) {}

  struct Form {
    const float* packed;
    const float* weights;  ///< of a convolution by Winograd's way, at any address; null otherwise
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
      // With three products, an image of other extents may go by Winograd's way.
      if (form == kernels::Bf16Form::one || kernels::nhwc_methods(p).size() == 1) weights_ = Tensor();
    }
    return reinterpret_cast<const uint32_t*>(bf16_.data<float>());
  }
  const float* transposed(const kernels::ConvParams& p) const {
    std::lock_guard lock(mutex_);
    Tensor& form = forms_[0];
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
  size_t size_bytes() const override {
    std::lock_guard lock(mutex_);
    size_t bytes = bf16_.defined() ? bf16_.size_bytes() : 0;
    for (const Tensor& form : forms_) bytes += form.defined() ? form.size_bytes() : 0;
    return bytes;
  }

 private:
  static Tensor room(int64_t size) {
    return Tensor(DType::float32, Shape{size}, allocate_large(static_cast<size_t>(size) * sizeof(float)));
  }
  // The weights of a convolution, should they have been let go.
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
  mutable Tensor bf16_;  // words of two numbers
};

}  // namespace treadle::ops
