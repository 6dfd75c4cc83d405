#include "treadle/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/files/file.h"
#include "core/files/npy.h"
#include "train/data/safetensors.h"
#include "train/data/shuffle.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

void check_sample(int64_t sample, int64_t count) {
  if (sample < 0 || sample >= count)
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no sample {}; the data have {}", sample, count));
}

Tensor gather_rows(const Tensor& rows, std::span<const int64_t> samples) {
  Shape shape = rows.shape();
  shape[0] = static_cast<int64_t>(samples.size());
  Tensor gathered(rows.dtype(), shape);
  if (gathered.num_elements() == 0) return gathered;
  const int64_t row_elements = rows.num_elements() / rows.shape()[0];
  if (rows.dtype() == DType::string) {
    for (size_t i = 0; i < samples.size(); ++i)
      std::copy_n(rows.data<std::string>() + samples[i] * row_elements, row_elements,
                  gathered.data<std::string>() + static_cast<int64_t>(i) * row_elements);
    return gathered;
  }
  const size_t row_bytes = size_bytes(rows.dtype(), row_elements);
  for (size_t i = 0; i < samples.size(); ++i)
    std::memcpy(gathered.raw() + i * row_bytes, rows.raw() + static_cast<size_t>(samples[i]) * row_bytes, row_bytes);
  return gathered;
}

class ArrayDataset final : public Dataset {
 public:
  explicit ArrayDataset(NamedTensors arrays) : arrays_(std::move(arrays)) {
    for (auto& [name, array] : arrays_) {
      if (array.shape().rank() == 0)
        throw Error(ErrorCode::invalid_argument, fmt::format("the array \"{}\" is a single number, it has no samples", name));
      if (bits_of(array.dtype()) % 8 != 0)
        throw Error(ErrorCode::not_implemented, fmt::format("the array \"{}\" is {}: samples of less than a byte", name, describe(array)));
      const auto& [first_name, first] = *arrays_.begin();
      if (array.shape()[0] != first.shape()[0])
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the array \"{}\" has {} samples, \"{}\" has {}", name, array.shape()[0], first_name, first.shape()[0]));
      array = array.contiguous();
    }
  }
  int64_t num_samples() const override { return arrays_.empty() ? 0 : arrays_.begin()->second.shape()[0]; }
  NamedTensors read(std::span<const int64_t> samples) const override {
    for (int64_t sample : samples) check_sample(sample, num_samples());
    NamedTensors batch;
    for (const auto& [name, array] : arrays_) batch.emplace(name, gather_rows(array, samples));
    return batch;
  }

 private:
  NamedTensors arrays_;
};

class SubsetDataset final : public Dataset {
 public:
  SubsetDataset(std::shared_ptr<const Dataset> data, std::vector<int64_t> samples) : data_(std::move(data)), samples_(std::move(samples)) {
    for (int64_t sample : samples_) check_sample(sample, data_->num_samples());
  }
  int64_t num_samples() const override { return static_cast<int64_t>(samples_.size()); }
  NamedTensors read(std::span<const int64_t> samples) const override {
    std::vector<int64_t> inner;
    for (int64_t sample : samples) {
      check_sample(sample, num_samples());
      inner.push_back(samples_[static_cast<size_t>(sample)]);
    }
    return data_->read(inner);
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<int64_t> samples_;
};

}  // namespace

Dataset::~Dataset() = default;

std::shared_ptr<const Dataset> dataset_of(NamedTensors arrays) { return std::make_shared<ArrayDataset>(std::move(arrays)); }

std::shared_ptr<const Dataset> subset_of(std::shared_ptr<const Dataset> data, std::vector<int64_t> samples) {
  return std::make_shared<SubsetDataset>(std::move(data), std::move(samples));
}

SplitData split(const std::shared_ptr<const Dataset>& data, double fraction, uint64_t seed) {
  const int64_t count = data->num_samples();
  if (!(fraction > 0 && fraction < 1))
    throw Error(ErrorCode::invalid_argument, fmt::format("a fraction of {} to validate with; it must be between 0 and 1", fraction));
  if (count < 2) throw Error(ErrorCode::invalid_argument, fmt::format("{} samples cannot be split", count));
  std::vector<int64_t> order = shuffled(count, seed, kSplitEpoch);
  const int64_t held_out = std::clamp<int64_t>(std::llround(fraction * static_cast<double>(count)), 1, count - 1);
  std::vector<int64_t> validation(order.begin(), order.begin() + held_out), training(order.begin() + held_out, order.end());
  for (std::vector<int64_t>* part : {&validation, &training}) std::sort(part->begin(), part->end());
  return {subset_of(data, std::move(training)), subset_of(data, std::move(validation))};
}

Tensor map_npy(const std::string& path) {
  const auto file = map_file(path);
  return parse_npy(file, 0, file->size_bytes(), path);
}

NamedTensors map_safetensors(const std::string& path) { return parse_safetensors(map_file(path), path).tensors; }

}  // namespace treadle::train
