#include "treadle/data.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "core/files/npy.h"
#include "train/data/shuffle.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// Makes a data set in which sample i is [i, 100 + i].
std::shared_ptr<const Dataset> numbers(int64_t count) {
  Tensor rows(DType::int64, {count, 2});
  for (int64_t i = 0; i < count; ++i) rows.data<int64_t>()[2 * i] = i, rows.data<int64_t>()[2 * i + 1] = 100 + i;
  return dataset_of({{"rows", rows}});
}

std::vector<int64_t> samples_of(const NamedTensors& batch) {
  const Tensor& rows = batch.at("rows");
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < rows.shape()[0]; ++i) {
    samples.push_back(rows.data<int64_t>()[2 * i]);
    EXPECT_EQ(rows.data<int64_t>()[2 * i + 1], 100 + samples.back());
  }
  return samples;
}

// Returns the batches of several epochs; an empty batch marks the end of each.
std::vector<std::vector<int64_t>> batches_of(DataLoader& loader, int epochs) {
  std::vector<std::vector<int64_t>> all;
  for (int i = 0; i < epochs;) {
    const auto batch = loader.next();
    all.push_back(batch ? samples_of(*batch) : std::vector<int64_t>());
    i += !batch;
  }
  return all;
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(DataLoader, AnEpochHasEachSampleOnceInAnOrderOfItsOwn) {
  DataLoader loader(numbers(23), {.batch_size = 5, .seed = 3});
  EXPECT_EQ(loader.batches_per_epoch(), 5);
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    for (const auto& batch : batches_of(loader, 1)) {
      EXPECT_TRUE(batch.empty() || batch.size() == 5 || batch.size() == 3);
      order.insert(order.end(), batch.begin(), batch.end());
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 23U);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4U);
  DataLoader whole(numbers(23), {.batch_size = 5, .shuffle = false, .drop_last = true});
  EXPECT_EQ(whole.batches_per_epoch(), 4);
  EXPECT_EQ(batches_of(whole, 1)[3], (std::vector<int64_t>{15, 16, 17, 18, 19}));
}

TEST(DataLoader, ReadingAheadChangesNothing) {
  DataLoader plain(numbers(50), {.batch_size = 7, .seed = 9, .prefetch = 0});
  const auto expected = batches_of(plain, 3);
  for (int prefetch : {1, 2, 40}) {
    DataLoader ahead(numbers(50), {.batch_size = 7, .seed = 9, .prefetch = prefetch});
    EXPECT_EQ(batches_of(ahead, 3), expected) << prefetch;
  }
  DataLoader other(numbers(50), {.batch_size = 7, .seed = 10});
  EXPECT_NE(batches_of(other, 3), expected);
}

TEST(DataLoader, GoesOnFromAnyPosition) {
  const LoaderOptions options{.batch_size = 4, .seed = 2};
  DataLoader straight(numbers(10), options);
  const auto expected = batches_of(straight, 3);
  for (size_t taken = 0; taken < expected.size(); ++taken) {
    DataLoader first(numbers(10), options), second(numbers(10), options);
    for (size_t i = 0; i < taken; ++i) first.next();
    second.next();
    second.resume(first.to_metadata());
    std::vector<std::vector<int64_t>> rest;
    for (size_t i = taken; i < expected.size(); ++i) {
      const auto batch = second.next();
      rest.push_back(batch ? samples_of(*batch) : std::vector<int64_t>());
    }
    EXPECT_EQ(rest, std::vector(expected.begin() + static_cast<std::ptrdiff_t>(taken), expected.end())) << taken;
  }
}

TEST(DataLoader, OtherDataAndOptionsAreRefused) {
  const Metadata taken = DataLoader(numbers(10), {.batch_size = 4}).to_metadata();
  auto resume = [&](int64_t count, const LoaderOptions& options) {
    return failure_of([&] { DataLoader(numbers(count), options).resume(taken); });
  };
  EXPECT_EQ(resume(10, {.batch_size = 4, .prefetch = 0}), "");
  EXPECT_EQ(resume(11, {.batch_size = 4}), "data.samples is 10 in the checkpoint, 11 here");
  EXPECT_EQ(resume(10, {.batch_size = 4, .seed = 1}), "data.seed is 0 in the checkpoint, 1 here");
  EXPECT_NE(failure_of([] { DataLoader(numbers(10)).resume({}); }), "");
  EXPECT_NE(failure_of([] { DataLoader(numbers(10)).seek({0, 5}); }), "");
  EXPECT_NE(failure_of([] { DataLoader(numbers(3), {.batch_size = 4, .drop_last = true}); }), "");
  EXPECT_NE(failure_of([] { DataLoader(numbers(0)); }), "");
  EXPECT_NE(failure_of([] { DataLoader(nullptr); }), "");
}

// A data set that throws when one sample is read.
class FailingData final : public Dataset {
 public:
  int64_t num_samples() const override { return 10; }
  NamedTensors read(std::span<const int64_t> samples) const override {
    for (int64_t sample : samples)
      if (sample == 5) throw Error(ErrorCode::io_error, "sample 5 is broken");
    return numbers(10)->read(samples);
  }
};

TEST(DataLoader, AFailureReachesTheCallerAndCanBePassed) {
  for (int prefetch : {0, 3}) {
    DataLoader loader(std::make_shared<FailingData>(), {.batch_size = 2, .shuffle = false, .prefetch = prefetch});
    loader.next(), loader.next();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(failure_of([&] { loader.next(); }), "sample 5 is broken");
    EXPECT_EQ(loader.position().batch, 2);
    loader.seek({0, 3});
    EXPECT_EQ(samples_of(*loader.next()), (std::vector<int64_t>{6, 7}));
  }
}

TEST(Dataset, ArraysAndParts) {
  EXPECT_NE(failure_of([] {
              dataset_of({{"a", Tensor(DType::float32, {3})}, {"b", Tensor(DType::float32, {4})}});
            }).find("\"b\" has 4 samples, \"a\" has 3"),
            std::string::npos);
  EXPECT_NE(failure_of([] { dataset_of({{"a", Tensor::scalar(1.0F)}}); }), "");
  EXPECT_NE(failure_of([] { numbers(3)->read(std::vector<int64_t>{3}); }), "");
  EXPECT_NE(failure_of([] { subset_of(numbers(3), {-1}); }), "");
  const SplitData parts = split(numbers(100), 0.25, 4);
  EXPECT_EQ(parts.validation->num_samples(), 25);
  std::set<int64_t> all;
  for (const auto& part : {parts.training, parts.validation}) {
    std::vector<int64_t> every(static_cast<size_t>(part->num_samples()));
    std::iota(every.begin(), every.end(), 0);
    for (int64_t sample : samples_of(part->read(every))) all.insert(sample);
  }
  EXPECT_EQ(all.size(), 100U);
  EXPECT_NE(failure_of([] { split(numbers(10), 1.0); }), "");
  EXPECT_NE(failure_of([] { split(numbers(1), 0.5); }), "");
  const auto texts = dataset_of({{"text", Tensor::strings({3}, std::vector<std::string>{"a", "b", "c"})}});
  EXPECT_EQ(texts->read(std::vector<int64_t>{2, 0}).at("text").data<std::string>()[0], "c");
}

// Each of the 6 orders of 3 samples must be about equally frequent: chi-square with 5 degrees of freedom is below its 0.1 % point.
TEST(Dataset, ShufflesAreUniform) {
  std::map<std::vector<int64_t>, int> counts;
  for (int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[shuffled(3, 1, epoch)];
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_EQ(counts.size(), 6U);
  EXPECT_LT(chi_square, 20.5);
}

class DataFiles : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "treadle_data_test";
};

TEST_F(DataFiles, TablesAreReadByTheNamesOfColumns) {
  const std::string path = write("t.csv", "a,b,kind,c\n1, 2.5,\"x, \"\"y\"\"\",+3\n\n-4e1,5,z,6\r\n");
  const CsvTable table = read_csv(path, {.label = "kind"});
  EXPECT_EQ(table.feature_names, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(table.classes, (std::vector<std::string>{"x, \"y\"", "z"}));
  const float expected[] = {1, 2.5, 3, -40, 5, 6};
  ASSERT_EQ(table.features.shape(), (Shape{2, 3}));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(table.features.data<float>()[i], expected[i]);
  EXPECT_EQ(table.labels.data<int64_t>()[1], 1);
  const CsvTable chosen = read_csv(path, {.label = "b", .features = {"a", "c*"}});
  EXPECT_EQ(chosen.feature_names, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(chosen.labels.dtype(), DType::float32);
  EXPECT_EQ(read_csv(path, {.label = "kind"}, {"z", "x, \"y\""}).labels.data<int64_t>()[0], 1);
  EXPECT_NE(failure_of([&] { read_csv(path, {.label = "kind"}, {"z"}); }).find("no class"), std::string::npos);
  EXPECT_NE(failure_of([&] { read_csv(path, {.features = {"d*"}}); }).find("no column \"d*\""), std::string::npos);
  const std::string pixels = write("p.csv", "x[0],x[1],y\n1,2,3\n");
  EXPECT_EQ(read_csv(pixels, {.label = "y", .features = {"x[?]"}}).feature_names, (std::vector<std::string>{"x[0]", "x[1]"}));
  EXPECT_EQ(read_csv(write("s.csv", "a;b\n1;2"), {.separator = ';'}).features.num_elements(), 2);
  EXPECT_EQ(read_csv(write("h.csv", "a,b\n")).features.shape(), (Shape{0, 2}));
}

TEST_F(DataFiles, MappedArraysAreThoseOfTheFile) {
  const std::string path = (folder_ / "a.npy").string();
  write_npy(path, Tensor::of<double>({2, 2}, std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(map_npy(path).data<double>()[3], 4);
  EXPECT_FALSE(map_npy(path).storage()->writable());
  EXPECT_NE(failure_of([&] { map_safetensors(path); }), "");
  EXPECT_NE(failure_of([&] { map_npy((folder_ / "absent").string()); }), "");
}

TEST_F(DataFiles, NumbersThatTheModelsDTypeLacksAreRefused) {
  auto read = [&](DType dtype, double number, DType from = DType::float64) {
    const std::string path = (folder_ / "x.npy").string();
    Tensor given = Tensor::of<double>({1, 1}, std::vector<double>{number});
    if (from == DType::int64) given = Tensor::of<int64_t>({1, 1}, std::vector<int64_t>{static_cast<int64_t>(number)});
    write_npy(path, given);
    const ValueInfo input{.name = "x", .type = "tensor", .dtype = dtype, .shape = {}, .has_rank = false};
    const OpenedData opened = open_data({.paths = {"x=" + path}}, {input}, {.dtype = DType::undefined});
    return opened.data->read(std::vector<int64_t>{0}).at("x");
  };
  EXPECT_EQ(read(DType::int32, 2147483647).data<int32_t>()[0], 2147483647);
  EXPECT_EQ(read(DType::int32, -2147483648.0, DType::int64).data<int32_t>()[0], INT32_MIN);
  EXPECT_EQ(read(DType::uint8, 255).data<uint8_t>()[0], 255);
  EXPECT_EQ(read(DType::boolean, 1).data<bool>()[0], true);
  for (const DType from : {DType::float64, DType::int64})
    for (const auto& [dtype, number] : {std::pair{DType::int32, 4294967301.0},
                                        {DType::int32, 2147483648.0},
                                        {DType::int32, -2147483649.0},
                                        {DType::int8, 128.0},
                                        {DType::int16, -32769.0},
                                        {DType::uint8, 256.0},
                                        {DType::uint8, -1.0},
                                        {DType::uint64, -1.0},
                                        {DType::boolean, 2.0}})
      EXPECT_NE(failure_of([&] { read(dtype, number, from); }).find("is no " + std::string(name_of(dtype))), std::string::npos) << number;
}

TEST_F(DataFiles, BrokenArraysAreRefused) {
  auto npy = [&](const std::string& header, size_t data_bytes = 0) {
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(header.size()), bytes += '\0';
    return failure_of([&] { map_npy(write("b.npy", bytes + header + std::string(data_bytes, 'x'))); });
  };
  EXPECT_EQ(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8), "");
  EXPECT_EQ(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4), "");
  for (const char* header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, x), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "{'descr': '<f4', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<U99999999999999999', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (9999999999,), }", "{'descr': '<', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '', 'fortran_order': False, 'shape': (1,), }", "{'descr': '<f4', 'shape': (1,), }", "{'descr': '<f4", ""})
    EXPECT_NE(npy(header, 8), "") << header;
}

}  // namespace
}  // namespace treadle::train
