// Training data: numbered samples, shuffled by a seed, in batches that a thread reads ahead.
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

/// A collection of samples, numbered from 0. Several threads may read at once.
class TREADLE_API Dataset {
 public:
  virtual ~Dataset();
  virtual int64_t num_samples() const = 0;
  /// Reads samples into tensors by name. The first extent of each tensor is the number of samples, in the given order.
  virtual NamedTensors read(std::span<const int64_t> samples) const = 0;
};

/// Makes a dataset whose sample i is row i of each array. Copies nothing: arrays of mapped files stay in the file.
/// @throws Error(invalid_argument) if the arrays differ in length
TREADLE_API std::shared_ptr<const Dataset> dataset_of(NamedTensors arrays);
/// Makes a dataset of the listed samples of `data` only, in this order.
/// @throws Error(invalid_argument) for the number of a sample that does not exist
TREADLE_API std::shared_ptr<const Dataset> subset_of(std::shared_ptr<const Dataset> data, std::vector<int64_t> samples);
/// The result of split(): a fixed random part for validation (`fraction` of the samples, rounded), and the rest. No part is empty.
struct TREADLE_API SplitData {
  std::shared_ptr<const Dataset> training, validation;
};
TREADLE_API SplitData split(const std::shared_ptr<const Dataset>& data, double fraction, uint64_t seed = 0);

/// Maps a .npy file; elements stay in the file.
TREADLE_API Tensor map_npy(const std::string& path);
/// Maps the tensors of a safetensors file.
TREADLE_API NamedTensors map_safetensors(const std::string& path);

/// The classes that labels may name.
struct ClassRange {
  int64_t count = 0;                              ///< labels are below it
  std::optional<int64_t> ignored = std::nullopt;  ///< a label that the loss leaves out
};

struct CsvOptions {
  std::string label;                  ///< name of the label column; empty: none
  std::vector<std::string> features;  ///< names or patterns of columns, in the file's order; empty: all except the label
  char separator = ',';
  std::optional<ClassRange> label_classes = std::nullopt;  ///< labels outside of it are an error; nullopt: labels may be any
};
struct CsvTable {
  Tensor features;  ///< float32 with the shape [rows, columns]
  /// int64 if all labels are integers, float32 if all are numbers, otherwise int64 indices into `classes`. Undefined without a label
  /// column.
  Tensor labels;
  std::vector<std::string> feature_names, classes;
};
/// Reads a CSV table (RFC 4180) whose first line names its columns.
/// @param classes  classes of an earlier file, which define the numbers of text labels; empty: the sorted classes of this file
/// @throws Error(invalid_argument) naming line and column of a cell that is not a number, or of a label that is no class
TREADLE_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {}, const std::vector<std::string>& classes = {});

/// Reads the arrays of a .npz file by name. Uncompressed arrays are views of the mapped file.
TREADLE_API NamedTensors read_npz(const std::string& path);
/// Decodes an image and resizes it to the extents of the model input. The axis of extent 1 or 3, first or last, is that of the channels.
/// Floats are in [0, 1]. @throws Error if the build cannot decode the file, or the input is not for images
TREADLE_API Tensor read_picture(const ValueInfo& input, const std::string& path);
using ReadPicture = std::function<Tensor(const ValueInfo& input, const std::string& path)>;

/// The data arguments of `treadle train`.
struct DataFiles {
  /// Files: .npz and .safetensors (arrays named as inputs; a single array may have any name), .csv, or INPUT=FILE.npy. Or a folder that
  /// contains one folder of images per class.
  std::vector<std::string> paths;
  std::string labels;                 ///< name of an array (default "labels") or of a column of a .csv, or path of a .npy file
  std::vector<std::string> features;  ///< selects columns of a .csv; see CsvOptions::features
  double scale = 1;                   ///< factor by which floating-point inputs are multiplied
  ReadPicture read_picture;           ///< reads images; null: train::read_picture()
};

/// The dtype and extents that a loss expects of its labels.
struct LabelForm {
  DType dtype = DType::int64;  ///< undefined: the loss has no labels
  /// For losses whose labels have the output's shape: the extents to which the label of a sample is reshaped. Nullopt: the label keeps its
  /// shape.
  std::optional<std::vector<int64_t>> extents = std::nullopt;
  std::optional<ClassRange> classes = std::nullopt;  ///< if the model declares how many classes it has
};
TREADLE_API LabelForm label_form(const TrainerOptions& options, const Model& model);
/// Lists the values that a training step must be fed besides the labels: the inputs of the model and of a loss model.
TREADLE_API std::vector<ValueInfo> fed_inputs(const TrainerOptions& options, const Model& model);

struct OpenedData {
  std::shared_ptr<const Dataset> data;  ///< samples: tensors named like the inputs, and labels (kBatchLabels), converted for the model
  std::vector<std::string> classes;     ///< names of the classes if the labels are text or folder names; otherwise empty
};
/// Opens data files as a dataset for a model. @param inputs  the inputs of the model
/// @param classes  classes of the training data, if this opens validation data; empty: the classes of these files
/// @throws Error naming the file and what is missing
TREADLE_API OpenedData open_data(const DataFiles& files, const std::vector<ValueInfo>& inputs, const LabelForm& labels,
                                 const std::vector<std::string>& classes = {});
/// The name that the labels have in a batch of OpenedData::data.
inline constexpr const char* kBatchLabels = "treadle.labels";
/// Splits a batch into the arguments of Trainer::step().
TREADLE_API std::pair<Feeds, Tensor> feeds_and_labels(NamedTensors batch);

struct LoaderOptions {
  int64_t batch_size = 32;
  bool shuffle = true;  ///< true: each epoch has a new random order, which depends on `seed` and the epoch
  uint64_t seed = 0;
  bool drop_last = false;  ///< omit the last samples of an epoch if they do not fill a batch
  int prefetch = 2;        ///< number of batches that a thread reads ahead; 0: no thread
  /// If there are several ranks, the loader reads only this rank's part of each batch: batch_size counts the samples of all ranks. A last
  /// batch with fewer samples than ranks is omitted. Positions count whole batches, so training may continue with another number of ranks.
  int rank = 0, num_ranks = 1;
};

/// The position of the next batch. Both numbers count from 0.
struct DataPosition {
  int64_t epoch = 0, batch = 0;
};

/// Reads the batches of a dataset, epoch after epoch. Not thread-safe.
class TREADLE_API DataLoader {
 public:
  explicit DataLoader(std::shared_ptr<const Dataset> data, const LoaderOptions& options = {});
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  /// Returns the next batch, or nullopt at the end of an epoch; the call after that begins the next epoch.
  /// @throws errors of reading the data; to continue after an error, call seek() with the position of a later batch
  std::optional<NamedTensors> next();
  int64_t batches_per_epoch() const;
  DataPosition position() const;
  /// Continues at this position. @throws Error(invalid_argument) if an epoch has no such batch
  void seek(const DataPosition& position);

  /// Returns the position, the seed and every option that determines the order of samples, for a checkpoint's metadata.
  Metadata to_metadata() const;
  /// Continues at the position in the metadata. @throws Error(invalid_argument) naming the first difference in data or options
  void resume(const Metadata& metadata);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace treadle::train
