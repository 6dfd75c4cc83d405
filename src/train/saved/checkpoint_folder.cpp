#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <system_error>

#include "train/graph/data_parallel.h"
#include "train/saved/checkpoint.h"
#include "treadle/error.h"
#include "treadle/train.h"

namespace treadle::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileBegin = "checkpoint-", kFileEnd = ".safetensors";
constexpr size_t kStepDigits = 12;  // fixed width, so that names sort by step

bool is_checkpoint_name(const std::string& name) {
  if (!name.starts_with(kFileBegin) || !name.ends_with(kFileEnd) || name.size() < kFileBegin.size() + kStepDigits + kFileEnd.size())
    return false;
  const std::string_view digits = std::string_view(name).substr(kFileBegin.size(), name.size() - kFileBegin.size() - kFileEnd.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// Returns true for the temporary name that AtomicFile gives to a checkpoint that is being written.
bool is_half_written(const std::string& name) {
  const size_t end = name.find(".tmp-");
  return end != std::string::npos && is_checkpoint_name(name.substr(0, end));
}

std::vector<fs::path> entries_of(const std::string& folder, bool (*fits)(const std::string& name)) {
  std::vector<fs::path> found;
  std::error_code failed;
  fs::directory_iterator entries(folder, failed);
  if (failed) throw Error(ErrorCode::io_error, fmt::format("cannot read the folder \"{}\": {}", folder, failed.message()));
  for (const fs::directory_entry& entry : entries)
    if (fits(entry.path().filename().string())) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

// Returns the paths of the checkpoints that rank 0 finds in its folder, so that all ranks try the same files.
std::vector<std::string> files_of_rank_0(const CheckpointFolder& folder, const Trainer& trainer) {
  Communicator* const ranks = trainer.options().communicator.get();
  if (!ranks) return folder.files();
  const std::string lines = text_of_rank_0(*ranks, [&] {
    std::string all;
    for (const std::string& file : folder.files()) all += file + '\n';
    return all;
  });
  std::vector<std::string> files;
  for (size_t at = 0, end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1) files.push_back(lines.substr(at, end - at));
  return files;
}

}  // namespace

struct CheckpointFolder::Impl {
  std::string folder;
  CheckpointFolderOptions options;
  std::future<void> writing;

  ~Impl() {
    if (writing.valid()) writing.wait();
  }

  void write(const std::string& path, std::string header, const NamedTensors& tensors) const {
    write_checkpoint(path, std::move(header), tensors);
    if (options.keep_last > 0) remove_older_than(path);
  }
  // Removes all but the last options.keep_last of the files up to `newest`. Files of later steps stay, as another trainer may need them.
  void remove_older_than(const std::string& newest) const {
    std::vector<fs::path> files = entries_of(folder, &is_checkpoint_name);
    std::erase_if(files, [&](const fs::path& path) { return path > fs::path(newest); });
    std::error_code ignored;
    for (size_t i = 0; i + static_cast<size_t>(options.keep_last) < files.size(); ++i) fs::remove(files[i], ignored);
  }
};

CheckpointFolder::CheckpointFolder(const std::string& folder, const CheckpointFolderOptions& options) : impl_(std::make_unique<Impl>()) {
  if (folder.empty()) throw Error(ErrorCode::invalid_argument, "a folder of checkpoints needs a name");
  if (options.keep_last < 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("keep_last is {}; it must be 0 or more", options.keep_last));
  impl_->folder = folder, impl_->options = options;
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw Error(ErrorCode::io_error, fmt::format("cannot make the folder \"{}\": {}", folder, failed.message()));
  for (const fs::path& path : entries_of(folder, &is_half_written)) fs::remove(path, failed);
}
CheckpointFolder::~CheckpointFolder() = default;
CheckpointFolder::CheckpointFolder(CheckpointFolder&&) noexcept = default;
CheckpointFolder& CheckpointFolder::operator=(CheckpointFolder&&) noexcept = default;

std::string CheckpointFolder::save(const Trainer& trainer, const Metadata& metadata) {
  wait();
  const std::string path =
      (fs::path(impl_->folder) / fmt::format("{}{:0{}}{}", kFileBegin, trainer.position().num_steps, kStepDigits, kFileEnd)).string();
  NamedTensors tensors = checkpoint_tensors(trainer);
  if (!writes_files(trainer)) return path;
  std::string header = checkpoint_header(trainer, tensors, metadata);
  if (!impl_->options.asynchronous) {
    impl_->write(path, std::move(header), tensors);
    return path;
  }
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();  // because the next step overwrites the trainer's tensors
  impl_->writing =
      std::async(std::launch::async, [impl = impl_.get(), path, header = std::move(header), tensors = std::move(tensors)]() mutable {
        impl->write(path, std::move(header), tensors);
      });
  return path;
}

void CheckpointFolder::wait() {
  if (impl_->writing.valid()) impl_->writing.get();
}

std::vector<std::string> CheckpointFolder::files() const {
  std::vector<std::string> files;
  for (const fs::path& path : entries_of(impl_->folder, &is_checkpoint_name)) files.push_back(path.string());
  return files;
}

std::optional<CheckpointFolder::Resumed> CheckpointFolder::resume(Trainer& trainer, CheckpointSettings settings) const {
  std::vector<std::string> newest_first = files_of_rank_0(*this, trainer);
  std::reverse(newest_first.begin(), newest_first.end());
  std::string first_failure;
  for (const std::string& path : newest_first) {
    try {
      Metadata metadata = trainer.load_checkpoint(path, settings);
      return Resumed{path, std::move(metadata)};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_model) throw;
      if (first_failure.empty()) first_failure = error.what();
    }
  }
  if (!first_failure.empty())
    throw Error(ErrorCode::invalid_model, fmt::format("none of the {} checkpoints in \"{}\" is whole; the newest: {}", newest_first.size(),
                                                      impl_->folder, first_failure));
  return std::nullopt;
}

}  // namespace treadle::train
