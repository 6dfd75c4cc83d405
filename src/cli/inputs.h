// Feeds from files or random numbers, as the command line names them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/pictures.h"
#include "treadle/session.h"

namespace CLI {
class App;
}

namespace treadle::cli {

/// The options that all commands share which run a model.
struct InputOptions {
  std::vector<std::string> files;       // NAME=FILE, NAME=LITERAL or FILE
  std::vector<std::string> dimensions;  // SYMBOL=EXTENT
  std::vector<std::string> shapes;      // NAME:1x576
  PictureOptions pictures;
  int64_t default_extent = 1;
  std::optional<uint64_t> seed;
  std::string_view setters = "--dim NAME=EXTENT or --shapes INPUT:EXTENTS";  // what sets extents, for texts
};

void add_input_options(CLI::App& app, InputOptions& options);
/// What random inputs and pictures are made of: for commands that take their files otherwise.
void add_sample_options(CLI::App& app, InputOptions& options);

/// @throws Error naming what --dim and --shapes say of no input, or wrongly.
void check_extents(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// Extents that neither the model, nor a file, nor an option says: "N=1", "images axis 2=1".
using AssumedExtents = std::set<std::string>;

struct MadeFeeds {
  std::map<std::string, Datum> values;
  AssumedExtents assumed;  ///< results and figures hold for these: every command tells them
};

/// One value per input of the model: from its file or literal, or random (floats in [0, 1), integers 0 or 1, bools, empty strings).
/// Symbols have the extents that files give them.
/// @throws Error naming the input or the file, or an option that nothing reads (of pictures, seeds, extents).
MadeFeeds make_feeds(const std::vector<ValueInfo>& inputs, const InputOptions& options);

/// "N=1, images axis 2=1", as JSON has it; empty if there are none.
std::string joined(const AssumedExtents& assumed);
/// The same, and what sets others.
std::string assumed_text(const AssumedExtents& assumed, const InputOptions& options);
/// Prints a line with this text, if there are any.
void print_assumed(const AssumedExtents& assumed, const InputOptions& options);
/// Calls `run`; an error is followed by the extents that were assumed until then, which are the usual cause.
void with_assumed_extents(const AssumedExtents& assumed, const InputOptions& options, const std::function<void()>& run);

/// "[N, 3, 224, 224]"; "?" where an extent has no name, "[...]" where the rank is unknown.
std::string shape_text(const ValueInfo& info);

/// Of a file's name, in small letters: ".npz".
std::string extension_of(const std::string& path);

/// Options of sessions that all commands share.
void add_session_options(CLI::App& app, SessionOptions& options);

/// First elements of a value, its type, and its range.
std::string summary(const Datum& datum, int64_t max_elements = 8);

/// The feeds of sample i: from files[i], or random where there are no so many files, each with a seed of its own.
/// @param assumed  gets what was assumed for this sample.
std::map<std::string, Datum> make_sample(const std::vector<ValueInfo>& infos, const InputOptions& options,
                                         const std::vector<std::string>& files, int64_t i, AssumedExtents& assumed);
/// @throws Error naming an option that none of `count` samples reads, the first of which are the files'.
void check_sample_options(const std::vector<ValueInfo>& infos, const InputOptions& options, const std::vector<std::string>& files,
                          int64_t count);
/// The files of the arguments and folders, one sample each, in order of their names.
/// @throws Error(not_found) for a folder without any
std::vector<std::string> sample_files(const std::vector<std::string>& paths);

}  // namespace treadle::cli
