// Loads the batches of an epoch in order, on a separate thread.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "train/data/shuffle.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::train {

struct DataLoader::Impl {
  std::shared_ptr<const Dataset> data;
  LoaderOptions options;
  int64_t num_samples = 0, num_batches = 0;
  DataPosition position;  // position of the batch that next() returns next

  // A batch that was read ahead, or the error. `mutex` guards the members from here to `stopping`; the reading thread shares them.
  struct Read {
    NamedTensors batch;
    std::exception_ptr failure;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Read> ready;
  bool stopping = false;
  std::thread reader;

  Impl(std::shared_ptr<const Dataset> given, const LoaderOptions& given_options) : data(std::move(given)), options(given_options) {
    if (!data) throw Error(ErrorCode::invalid_argument, "a loader needs data");
    if (options.batch_size < 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("batch_size is {}; it must be 1 or more", options.batch_size));
    if (options.prefetch < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("prefetch is {}; it must be 0 or more", options.prefetch));
    if (options.num_ranks < 1 || options.rank < 0 || options.rank >= options.num_ranks)
      throw Error(ErrorCode::invalid_argument, fmt::format("rank {} of {}", options.rank, options.num_ranks));
    if (options.batch_size < options.num_ranks)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a batch of {} has no sample for each of {} ranks", options.batch_size, options.num_ranks));
    num_samples = data->num_samples();
    const int64_t whole = num_samples / options.batch_size, rest = num_samples % options.batch_size;
    num_batches = options.drop_last || rest < std::max(options.num_ranks, 1) ? whole : whole + 1;
    if (num_batches == 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} samples make no batch of {}", num_samples, options.batch_size));
  }
  ~Impl() { stop(); }

  std::vector<int64_t> order_of(int64_t epoch) const {
    if (options.shuffle) return shuffled(num_samples, options.seed, epoch);
    std::vector<int64_t> order(static_cast<size_t>(num_samples));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  NamedTensors read(const std::vector<int64_t>& order, int64_t batch) const {
    const int64_t joint = batch * options.batch_size, joint_count = std::min(options.batch_size, num_samples - joint);
    const int64_t first = joint + joint_count * options.rank / options.num_ranks,
                  count = joint + joint_count * (options.rank + 1) / options.num_ranks - first;
    return data->read(std::span(order).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
  }

  // Body of the reading thread: reads batches, beginning with the one at `at`, until stop() is called or reading fails.
  void read_ahead(DataPosition at) {
    std::vector<int64_t> order;
    for (bool fails = false; !fails;) {
      Read made;
      try {
        if (at.batch == num_batches) at = {at.epoch + 1, 0};
        if (order.empty() || at.batch == 0) order = order_of(at.epoch);
        made.batch = read(order, at.batch++);
      } catch (...) {
        made.failure = std::current_exception();
        fails = true;
      }
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || ready.size() < static_cast<size_t>(options.prefetch); });
      if (stopping) return;
      ready.push_back(std::move(made));
      changed.notify_all();
    }
  }

  void stop() {
    if (!reader.joinable()) return;
    {
      std::lock_guard lock(mutex);
      stopping = true;
      changed.notify_all();
    }
    reader.join();
    stopping = false;
    ready.clear();
  }

  NamedTensors take() {
    if (options.prefetch == 0) return read(order_of(position.epoch), position.batch);
    if (!reader.joinable()) reader = std::thread([this, from = position] { read_ahead(from); });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !ready.empty(); });
    if (ready.front().failure) std::rethrow_exception(ready.front().failure);
    NamedTensors batch = std::move(ready.front().batch);
    ready.pop_front();
    changed.notify_all();
    return batch;
  }

  std::vector<std::pair<std::string, std::string>> settings() const {
    return {{"data.samples", std::to_string(num_samples)},
            {"data.batch_size", std::to_string(options.batch_size)},
            {"data.shuffle", options.shuffle ? "1" : "0"},
            {"data.seed", std::to_string(options.seed)},
            {"data.drop_last", options.drop_last ? "1" : "0"}};
  }
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> data, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(data), options)) {}
DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

std::optional<NamedTensors> DataLoader::next() {
  if (impl_->position.batch == impl_->num_batches) {
    impl_->position = {impl_->position.epoch + 1, 0};
    return std::nullopt;
  }
  NamedTensors batch = impl_->take();
  ++impl_->position.batch;
  return batch;
}

int64_t DataLoader::batches_per_epoch() const { return impl_->num_batches; }
DataPosition DataLoader::position() const { return impl_->position; }

void DataLoader::seek(const DataPosition& position) {
  if (position.epoch < 0 || position.batch < 0 || position.batch > impl_->num_batches)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no batch {} of epoch {}; an epoch has {}", position.batch, position.epoch, impl_->num_batches));
  impl_->stop();
  impl_->position = position;
}

Metadata DataLoader::to_metadata() const {
  Metadata metadata = impl_->settings();
  metadata.emplace_back("data.epoch", std::to_string(impl_->position.epoch));
  metadata.emplace_back("data.batch", std::to_string(impl_->position.batch));
  return metadata;
}

void DataLoader::resume(const Metadata& metadata) {
  auto text = [&](const std::string& key) -> const std::string& {
    for (const auto& [name, value] : metadata)
      if (name == key) return value;
    throw Error(ErrorCode::invalid_argument, fmt::format("the checkpoint does not say where in the data it was taken: no \"{}\"", key));
  };
  for (const auto& [key, here] : impl_->settings())
    if (text(key) != here)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is {} in the checkpoint, {} here", key, text(key), here));
  auto number = [&](const std::string& key) {
    const std::string& digits = text(key);
    int64_t value = 0;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (failure != std::errc() || end != digits.data() + digits.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("the checkpoint's {} is \"{}\"", key, digits));
    return value;
  };
  seek({number("data.epoch"), number("data.batch")});
}

}  // namespace treadle::train
