// Data to train on: samples by number, shuffled by a seed, in batches that a thread reads ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "treadle/export.h"
#include "treadle/model.h"
#include "treadle/tensor.h"
#include "treadle/train.h"

namespace treadle::train {

/// Samples by number. Several threads may read at once.
class TREADLE_API Dataset {
 public:
  virtual ~Dataset();
  virtual int64_t num_samples() const = 0;
  /// The samples with these numbers, one after the other, by name: the first extent of each tensor is their number.
  virtual NamedTensors read(std::span<const int64_t> samples) const = 0;
};

/// Sample i is row i of each array; a number is an array's first extent. Nothing is copied: arrays of mapped files stay in the file.
/// @throws Error(invalid_argument) for arrays of different lengths.
TREADLE_API std::shared_ptr<const Dataset> dataset_of(NamedTensors arrays);
/// The samples with these numbers, in this order. @throws Error(invalid_argument) for a number that does not exist.
TREADLE_API std::shared_ptr<const Dataset> subset_of(std::shared_ptr<const Dataset> data, std::vector<int64_t> samples);
/// Splits off a fixed random part of the samples, to validate with: `fraction` of them, rounded, at least one in each part.
struct TREADLE_API SplitData {
  std::shared_ptr<const Dataset> training, validation;
};
TREADLE_API SplitData split(const std::shared_ptr<const Dataset>& data, double fraction, uint64_t seed = 0);

/// A .npy file's array; its elements stay in the file, which is mapped.
TREADLE_API Tensor map_npy(const std::string& path);
/// A safetensors file's tensors, mapped likewise.
TREADLE_API NamedTensors map_safetensors(const std::string& path);

struct CsvOptions {
  std::string label;                  ///< name of the column; empty: there is none
  std::vector<std::string> features;  ///< names or patterns of columns, in the file's order; empty: all but the label
  char separator = ',';
};
struct CsvTable {
  Tensor features;  ///< float32 [rows, columns]
  /// int64 if all are integers, float32 if all are numbers, else the place in `classes`, int64. Undefined without a label.
  Tensor labels;
  std::vector<std::string> feature_names, classes;
};
/// A text table whose first line names its columns, as RFC 4180 has it.
/// @param classes  classes of an earlier file, whose numbers text labels shall have; empty: the sorted classes of this file.
/// @throws Error(invalid_argument) naming line and column of what is no number.
TREADLE_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {}, const std::vector<std::string>& classes = {});

/// The arrays of a .npz file by name; those that are stored, not deflated, stay in the file, which is mapped.
TREADLE_API NamedTensors read_npz(const std::string& path);
/// A picture in the layout of the input (channels first or last, by where 1 or 3 of them stand), stretched to its extents; floats are in
/// [0, 1]. @throws Error for a file of a format that the build does not decode, and for an input that takes no pictures.
TREADLE_API Tensor read_picture(const ValueInfo& input, const std::string& path);
using ReadPicture = std::function<Tensor(const ValueInfo& input, const std::string& path)>;

/// What `treadle train` takes as data.
struct DataFiles {
  /// .npz and .safetensors (arrays named as inputs; a single one may have any name), .csv, INPUT=FILE.npy; or a folder with a folder of
  /// pictures for each class.
  std::vector<std::string> paths;
  std::string labels;                 ///< an array ("labels" if empty), a column of a .csv, or a .npy file
  std::vector<std::string> features;  ///< as of CsvOptions
  double scale = 1;                   ///< a factor for floating-point inputs
  ReadPicture read_picture;           ///< null: train::read_picture()
};

/// What a loss takes beside the output.
struct LabelForm {
  DType dtype = DType::int64;  ///< undefined: the loss has no labels
  /// Extents of a sample, for losses whose labels are like the output; nothing: as they are.
  std::optional<std::vector<int64_t>> extents = std::nullopt;
};
TREADLE_API LabelForm label_form(const TrainerOptions& options, const Model& model);
/// What a step is fed beside labels: the model's inputs, and a loss model's.
TREADLE_API std::vector<ValueInfo> fed_inputs(const TrainerOptions& options, const Model& model);

struct OpenedData {
  std::shared_ptr<const Dataset> data;  ///< feeds by the inputs' names, and labels, in the dtypes and shapes that the model takes
  std::vector<std::string> classes;     ///< names, where labels are text or folders
};
/// @param inputs   of the model.
/// @param classes  of the training data, for those to validate with; empty: the files' own.
/// @throws Error naming the file, and what it lacks.
TREADLE_API OpenedData open_data(const DataFiles& files, const std::vector<ValueInfo>& inputs, const LabelForm& labels,
                                 const std::vector<std::string>& classes = {});
/// Under this name a batch of such data has the labels.
inline constexpr const char* kBatchLabels = "treadle.labels";
/// A batch as Trainer::step() takes it.
TREADLE_API std::pair<Feeds, Tensor> feeds_and_labels(NamedTensors batch);

struct LoaderOptions {
  int64_t batch_size = 32;
  bool shuffle = true;  ///< a new order in each epoch, from seed and epoch
  uint64_t seed = 0;
  bool drop_last = false;  ///< leave out the samples of an epoch that do not fill a batch
  int prefetch = 2;        ///< number of batches that a thread reads ahead; 0: none
  /// Of each batch, the part of one rank among several: batch_size counts the samples of all. A last batch with fewer samples than ranks is
  /// left out. Positions are of whole batches, so that another number of ranks goes on from them.
  int rank = 0, num_ranks = 1;
};

/// The next batch. Both count from 0.
struct DataPosition {
  int64_t epoch = 0, batch = 0;
};

/// Batches of a dataset, epoch after epoch. Not for use by several threads at once.
class TREADLE_API DataLoader {
 public:
  explicit DataLoader(std::shared_ptr<const Dataset> data, const LoaderOptions& options = {});
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  /// Nothing at the end of an epoch; the call after that begins the next one.
  /// @throws what reading the data throws; seek() past the batch to go on.
  std::optional<NamedTensors> next();
  int64_t batches_per_epoch() const;
  DataPosition position() const;
  /// @throws Error(invalid_argument) for a batch that an epoch does not have.
  void seek(const DataPosition& position);

  /// Position, seed, and what the order depends on, for a checkpoint's metadata.
  Metadata to_metadata() const;
  /// Continues at the position in the metadata. @throws Error(invalid_argument) naming the first difference for other data or options.
  void resume(const Metadata& metadata);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace treadle::train
