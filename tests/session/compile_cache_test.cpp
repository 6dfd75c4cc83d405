// Tests compiled models: files that users write, and the folder of files that a session keeps.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "compiled/checksum.h"
#include "compiled/file.h"
#include "tests/session/packing_model.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

namespace fs = std::filesystem;

class CompiledModel : public ::testing::Test {
 protected:
  CompiledModel() {
    std::string pattern = (fs::temp_directory_path() / "treadle-compiled-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    folder = pattern;
    options.cache_dir = folder / "cache";
    options.on_warning = [this](const std::string& text) { warnings.push_back(text); };
    options.on_pass = [this](std::string_view, const std::string&, int64_t) { ++num_passes; };
  }
  ~CompiledModel() override { fs::remove_all(folder); }

  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder / "cache")) files.push_back(entry.path());
    return files;
  }

  fs::path folder;
  SessionOptions options;
  std::vector<std::string> warnings;
  int num_passes = 0;
};

std::map<std::string, Datum> feeds_of(int64_t batch = 1) {
  return {{"image", numbers(Shape{batch, 16, 12, 12}, 50)}, {"x", numbers(Shape{batch, 48}, 51)}, {"steps", numbers(Shape{5, 2, 8}, 52)}};
}

// Runs the session and returns the bytes of the outputs.
std::string bits(const Session& session, int64_t batch = 1) {
  std::string all;
  for (const Datum& output : session.run(feeds_of(batch))) {
    const Tensor tensor = output.tensor().contiguous();
    all.append(reinterpret_cast<const char*>(tensor.raw()), tensor.size_bytes());
  }
  return all;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void overwrite(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

// Corrects the checksums in the header of a file whose description has been changed, as an attacker can.
void mend_checksums(std::string& file) {
  uint64_t description_bytes = 0;
  std::memcpy(&description_bytes, file.data() + 24, 8);
  if (description_bytes > file.size() - 64) return;
  const auto* data = reinterpret_cast<const std::byte*>(file.data());
  uint64_t sum = compiled::checksum({data + 64, description_bytes});
  std::memcpy(file.data() + 40, &sum, 8);
  sum = compiled::checksum({data, 56});
  std::memcpy(file.data() + 56, &sum, 8);
}

TEST_F(CompiledModel, RunsToTheSameBits) {
  packing_model().model().save(folder / "m.onnx");
  const Session plain(folder / "m.onnx");
  options.cache_dir.clear();
  options.compiled_model_filepath = folder / "m.treadle";
  const Session writing(folder / "m.onnx", options);
  const Session compiled(folder / "m.treadle");
  for (int64_t batch : {1, 3, 2}) {
    EXPECT_TRUE(bits(writing, batch) == bits(plain, batch)) << batch;
    EXPECT_TRUE(bits(compiled, batch) == bits(plain, batch)) << batch;
  }
  EXPECT_EQ(compiled.to_text("optimized"), plain.to_text("optimized"));
  EXPECT_EQ(compiled.inputs().size(), 3U);
  EXPECT_EQ(compiled.outputs()[1].name, "p");
  EXPECT_EQ(std::get<std::string>(compiled.inputs()[1].shape[0]), "n");
  EXPECT_EQ(compiled.memory().weight_bytes, plain.memory().weight_bytes);
  EXPECT_TRUE(warnings.empty());
}

TEST_F(CompiledModel, IsNeitherOptimizedNorPackedAgain) {
  packing_model().model().save(folder / "m.onnx");
  options.cache_dir.clear();
  options.compiled_model_filepath = folder / "m.treadle";
  const Session writing(folder / "m.onnx", options);
  EXPECT_GT(num_passes, 0);
  num_passes = 0;
  SessionOptions reading;
  reading.on_pass = options.on_pass;
  const Session compiled(folder / "m.treadle", reading);
  bits(compiled);
  EXPECT_EQ(num_passes, 0);
  const std::string text = compiled.to_text("planned");
  EXPECT_EQ(text, writing.to_text("planned"));
}

TEST_F(CompiledModel, ComesFromTheCacheTheSecondTime) {
  packing_model().model().save(folder / "m.onnx");
  const Session first(folder / "m.onnx", options);
  ASSERT_EQ(cached().size(), 1U);
  const auto written = fs::last_write_time(cached()[0]);
  EXPECT_GT(num_passes, 0);
  num_passes = 0;
  const Session second(folder / "m.onnx", options);
  EXPECT_EQ(num_passes, 0);
  EXPECT_TRUE(bits(second, 2) == bits(Session(folder / "m.onnx"), 2));
  EXPECT_EQ(fs::last_write_time(cached()[0]), written);
  EXPECT_TRUE(warnings.empty());
  // Other outputs need another program, which is made from the model and not from the file.
  EXPECT_EQ(second.run(feeds_of(), std::vector<std::string>{"xa"}).size(), 1U);
}

TEST_F(CompiledModel, ChangedFilesAndOptionsHaveOthersInTheCache) {
  packing_model().model().save(folder / "m.onnx");
  const Session first(folder / "m.onnx", options);
  const std::string before = bits(first);
  packing_model(2).model().save(folder / "m.onnx");
  const Session changed(folder / "m.onnx", options);
  EXPECT_EQ(cached().size(), 2U);
  EXPECT_TRUE(bits(changed) == bits(Session(folder / "m.onnx")));
  EXPECT_TRUE(bits(changed) != before);
  options.disabled_passes = {"fuse-conv"};
  const Session other(folder / "m.onnx", options);
  EXPECT_EQ(cached().size(), 3U);
}

TEST_F(CompiledModel, KeepsThePrecisionItWasCompiledFor) {
  packing_model().model().save(folder / "m.onnx");
  const std::string exact = bits(Session(folder / "m.onnx", options), 2);
  for (const char* precision : {"bfloat16", "bfloat16x3", "int8_weights"}) {
    SessionOptions plain;
    plain.precision = options.precision = precision;
    const std::string expected = bits(Session(folder / "m.onnx", plain), 2);
    EXPECT_TRUE(expected != exact) << precision;
    for (int time : {1, 2}) EXPECT_TRUE(bits(Session(folder / "m.onnx", options), 2) == expected) << precision << ", session " << time;
  }
  EXPECT_EQ(cached().size(), 4U);
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

TEST_F(CompiledModel, IsLeftAloneWhereItsOptionsCannotBeKept) {
  packing_model().model().save(folder / "m.onnx");
  options.initializers["half"] = Tensor::scalar(2.0F);
  const Session replaced(folder / "m.onnx", options);
  EXPECT_FALSE(fs::exists(folder / "cache"));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("initializers are replaced"), std::string::npos) << warnings[0];
}

TEST_F(CompiledModel, TellsWhatItCannotDo) {
  packing_model().model().save(folder / "m.onnx");
  SessionOptions writing;
  writing.compiled_model_filepath = folder / "m.treadle";
  const Session made(folder / "m.onnx", writing);
  const Session compiled(folder / "m.treadle");
  try {
    compiled.run(feeds_of(), std::vector<std::string>{"xa"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_implemented);
    EXPECT_NE(std::string(error.what()).find("needs the ONNX model"), std::string::npos) << error.what();
  }
  SessionOptions others;
  others.disabled_passes = {"fuse-conv"};
  EXPECT_THROW(Session(folder / "m.treadle", others), Error);
  // The file gets another version.
  std::string bytes = contents(folder / "m.treadle");
  const size_t at = bytes.find("treadle ", 64);
  bytes[at + 8] = '9';
  mend_checksums(bytes);
  overwrite(folder / "m.treadle", bytes);
  try {
    Session(folder / "m.treadle");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("compile it again"), std::string::npos) << error.what();
  }
}

TEST_F(CompiledModel, CheckFindsEveryChangedByte) {
  packing_model().model().save(folder / "m.onnx");
  SessionOptions writing;
  writing.compiled_model_filepath = folder / "m.treadle";
  const Session made(folder / "m.onnx", writing);
  compiled::File(folder / "m.treadle").verify();
  const std::string bytes = contents(folder / "m.treadle");
  // Flips a bit at several positions, up to the last byte: the last block ends where the file ends.
  for (size_t at : {size_t{0}, size_t{9}, size_t{30}, size_t{70}, size_t{700}, bytes.size() - 1, bytes.size() - 100}) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    overwrite(folder / "m.treadle", changed);
    EXPECT_THROW(compiled::File(folder / "m.treadle").verify(), Error) << at;
  }
  for (size_t size : {size_t{0}, size_t{8}, size_t{63}, size_t{64}, size_t{1000}, bytes.size() - 1}) {
    overwrite(folder / "m.treadle", bytes.substr(0, size));
    EXPECT_THROW(Session(folder / "m.treadle"), Error) << size;
  }
}

// The declared extent of y is changed from the symbol n to 0, so that there would be no memory for the output.
TEST_F(CompiledModel, TypesInItsDescriptionAreInferredAgain) {
  packing_model().model().save(folder / "m.onnx");
  SessionOptions writing;
  writing.compiled_model_filepath = folder / "m.treadle";
  const Session made(folder / "m.onnx", writing);
  std::string bytes = contents(folder / "m.treadle");
  // fields: name, kind, type, rank, "is symbolic".
  const char record[] = {1, 0, 0, 0, 0, 0, 0, 0, 'y', 0, 1, 1, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 1};
  const size_t at = bytes.find(std::string(record, sizeof(record)));
  ASSERT_NE(at, std::string::npos);
  bytes[at + sizeof(record) - 1] = 0;
  mend_checksums(bytes);
  overwrite(folder / "m.treadle", bytes);
  EXPECT_TRUE(bits(Session(folder / "m.treadle"), 3) == bits(Session(folder / "m.onnx"), 3));
}

// Changes the record of input "x", which other parts of the file contradict.
TEST_F(CompiledModel, InputsAreOfTheKindThatItTellsOf) {
  packing_model().model().save(folder / "m.onnx");
  SessionOptions writing;
  writing.compiled_model_filepath = folder / "m.treadle";
  const Session made(folder / "m.onnx", writing);
  const std::string bytes = contents(folder / "m.treadle");
  const char record[] = {1, 0, 0, 0, 0, 0, 0, 0, 'x', 1, 1, 1, 0, 1, 2};  // fields: name, kind, type (kind, dtype, key), "has a rank", rank
  const size_t at = bytes.find(std::string(record, sizeof(record)));
  ASSERT_NE(at, std::string::npos);
  auto with = [&](size_t place, char value) {
    std::string changed = bytes;
    changed[at + place] = value;
    mend_checksums(changed);
    overwrite(folder / "m.treadle", changed);
    try {
      const Session session(folder / "m.treadle");
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(with(10, 1), ErrorCode::ok);
  for (char kind : {0, 2, 3, 4, 5, 6}) EXPECT_EQ(with(10, kind), ErrorCode::invalid_model) << int{kind};
  for (char dtype : {0, 2, 7, 8, 11, 99}) EXPECT_NE(with(11, dtype), ErrorCode::ok) << int{dtype};
  EXPECT_EQ(with(12, 7), ErrorCode::invalid_model) << "a key, of a tensor";
  EXPECT_EQ(with(8, 'z'), ErrorCode::invalid_model) << "another name";
  EXPECT_EQ(with(8, '\xe9'), ErrorCode::invalid_model) << "no UTF-8";
}

// Makes random changes with correct checksums, as an attacker can. The program may compute nonsense, but must not access memory outside of
// its own.
TEST_F(CompiledModel, NeverCrashesWhateverItsDescriptionSays) {
  packing_model().model().save(folder / "m.onnx");
  SessionOptions writing;
  writing.compiled_model_filepath = folder / "m.treadle";
  const Session made(folder / "m.onnx", writing);
  const std::string bytes = contents(folder / "m.treadle");
  uint64_t description_bytes = 0;
  std::memcpy(&description_bytes, bytes.data() + 24, 8);
  std::mt19937_64 random(7);
  SessionOptions reading;
  reading.intra_op_num_threads = 1;
  // Pads of millions are valid, and without a limit would make images that fill the machine's memory.
  reading.memory_limit_bytes = 256 << 20;
  int refused = 0;
  constexpr int kTrials = 1500;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string changed = bytes;
    for (uint64_t i = 0; i <= random() % 3; ++i) {
      char& byte = changed[64 + random() % description_bytes];
      const char values[] = {0, 1, '\x7f', '\xff', static_cast<char>(byte ^ 1), static_cast<char>(byte + 1), static_cast<char>(random())};
      byte = values[random() % std::size(values)];
    }
    if (trial % 50 == 0) {  // the description is shortened
      const uint64_t less = random() % description_bytes;
      std::memcpy(changed.data() + 24, &less, 8);
    }
    mend_checksums(changed);
    overwrite(folder / "changed.treadle", changed);
    try {
      Session session((folder / "changed.treadle").string(), reading);
      session.run(feeds_of());
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kTrials / 10);
}

TEST_F(CompiledModel, DamagedOnesInTheCacheAreMadeAnew) {
  packing_model().model().save(folder / "m.onnx");
  const std::string truth = bits(Session(folder / "m.onnx"));
  { const Session first(folder / "m.onnx", options); }
  const fs::path file = cached().at(0);
  const std::string bytes = contents(file);
  for (const std::string& damaged :
       {bytes.substr(0, 1000), std::string("nothing"), std::string(), bytes.substr(0, 64) + bytes.substr(65)}) {
    warnings.clear();
    overwrite(file, damaged);
    EXPECT_TRUE(bits(Session(folder / "m.onnx", options)) == truth);
    EXPECT_EQ(warnings.size(), 1U);
    EXPECT_TRUE(contents(file) == bytes) << "written again";
  }
}

TEST_F(CompiledModel, IsWrittenByManyAtOnce) {
  packing_model().model().save(folder / "m.onnx");
  const std::string truth = bits(Session(folder / "m.onnx"));
  SessionOptions quiet;
  quiet.cache_dir = options.cache_dir;
  quiet.intra_op_num_threads = 1;
  std::vector<std::string> results(6);
  std::vector<std::thread> threads;
  for (std::string& result : results) threads.emplace_back([&] { result = bits(Session((folder / "m.onnx").string(), quiet)); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_TRUE(result == truth);
  EXPECT_EQ(cached().size(), 1U) << "no temporary file is left";
  compiled::File(cached()[0]).verify();
}

TEST_F(CompiledModel, CannotBeKeptInAFolderThatIsNone) {
  packing_model().model().save(folder / "m.onnx");
  overwrite(folder / "cache", "a file");
  EXPECT_TRUE(bits(Session(folder / "m.onnx", options)) == bits(Session(folder / "m.onnx")));
  EXPECT_EQ(warnings.size(), 1U);
}

}  // namespace
}  // namespace treadle::testing
