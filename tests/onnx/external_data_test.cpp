// Tests external data: the library uses it in place, checks it against the file, and never reads outside of the model's folder.
#include <gtest/gtest.h>

#include "onnx/parse.h"
#include "tests/onnx/model_difference.h"
#include "tests/onnx/wire_builder.h"

namespace treadle::onnx::test {
namespace {
namespace fs = std::filesystem;

/// Makes a model with one external float initializer "w".
std::string model(int64_t count, const std::vector<std::pair<std::string, std::string>>& entries, int data_type = 1) {
  return model_message(message([&](Writer& g) {
    g.add_message(5, tensor_message(
                         {count}, data_type,
                         [&](Writer& t) {
                           for (const auto& [key, value] : entries) t.add_message(13, entry(key, value));
                           t.add_int32(14, 1);
                         },
                         "w"));
  }));
}

std::string floats(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += raw_of({static_cast<float>(i)});
  return bytes;
}

std::string error_of_file(const std::string& path) {
  return error_of([&] { parse_model_file(path); });
}

TEST(OnnxExternalData, IsReadInPlaceAndKeepsTheFileAlive) {
  for (bool use_mmap : {true, false}) {
    Tensor value;
    {
      TemporaryFolder folder;
      folder.write("w.bin", std::string(64, 'x') + floats(1000));
      std::string path = folder.write(
          "m.onnx", model(1000, {{"location", "w.bin"}, {"offset", "64"}, {"length", "4000"}, {"checksum", "abc"}, {"basepath", "?"}}));
      ModelDef m = parse_model_file(path, {.use_mmap = use_mmap});
      const TensorDef& w = m.graph.initializers.at(0);
      EXPECT_TRUE(w.is_external);
      EXPECT_EQ(w.external.location, "w.bin");
      EXPECT_EQ(w.external.offset, 64u);
      EXPECT_EQ(w.external.length, 4000u);
      EXPECT_EQ(w.external.checksum, "abc");
      EXPECT_EQ(w.external.other, (Properties{{"basepath", "?"}}));
      value = w.value;
    }  // the model is destroyed and the file deleted, but the memory stays valid
    EXPECT_EQ(value.storage()->size_bytes(), 4064u);
    EXPECT_EQ(raw_bytes(value), floats(1000));
    EXPECT_EQ(value.storage()->writable(), !use_mmap);
  }
}

TEST(OnnxExternalData, OffsetAndLengthMayBeLeftOut) {
  TemporaryFolder folder;
  folder.write("sub/w.bin", floats(4) + "more than is needed");
  std::string path = folder.write("m.onnx", model(4, {{"location", "sub/w.bin"}}));
  EXPECT_EQ(raw_bytes(parse_model_file(path).graph.initializers[0].value), floats(4));
}

TEST(OnnxExternalData, MisalignedDataIsCopied) {
  TemporaryFolder folder;
  folder.write("w.bin", "x" + floats(1000));
  std::string path = folder.write("m.onnx", model(1000, {{"location", "w.bin"}, {"offset", "1"}}));
  Tensor value = parse_model_file(path).graph.initializers[0].value;
  EXPECT_EQ(raw_bytes(value), floats(1000));
  EXPECT_EQ(value.storage()->size_bytes(), 4000u);
}

TEST(OnnxExternalData, CanBeLeftUnread) {
  std::string bytes = model(1000, {{"location", "nowhere.bin"}, {"offset", "8"}});
  ModelDef m = parse_model_bytes(bytes_of(bytes), nullptr, {}, {.load_external = false});
  const TensorDef& w = m.graph.initializers.at(0);
  EXPECT_FALSE(w.value.defined());
  EXPECT_EQ(w.dtype, DType::float32);
  EXPECT_EQ(w.shape, (Shape{1000}));
  EXPECT_EQ(w.external.offset, 8u);
}

TEST(OnnxExternalData, MustStayInTheModelsFolder) {
  TemporaryFolder folder;
  folder.write("secret.bin", floats(4));
  fs::create_directories(folder.path() / "models/sub");
  fs::create_symlink("../secret.bin", folder.path() / "models/link.bin");
  fs::create_directory_symlink("..", folder.path() / "models/up");
  fs::create_symlink("sub/inside.bin", folder.path() / "models/good.bin");
  folder.write("models/sub/inside.bin", floats(4));
  auto error = [&](const std::string& location) {
    return error_of_file(folder.write("models/m.onnx", model(4, {{"location", location}})));
  };
  EXPECT_NE(error("../secret.bin").find("must be a relative path inside"), std::string::npos);
  EXPECT_NE(error("sub/../../secret.bin").find("must be a relative path inside"), std::string::npos);
  EXPECT_NE(error(folder.file("secret.bin")).find("must be a relative path inside"), std::string::npos);
  EXPECT_NE(error("link.bin").find("through a symbolic link"), std::string::npos);
  EXPECT_NE(error("up/secret.bin").find("through a symbolic link"), std::string::npos);
  EXPECT_NE(error(std::string("sub/inside.bin\0x", 16)).find("not a file name"), std::string::npos);
  EXPECT_NE(error("").find("not a file name"), std::string::npos);
  EXPECT_EQ(error("good.bin"), "no error");
  EXPECT_NE(error("sub").find("not a regular file"), std::string::npos);
  EXPECT_NE(error("link.bin").find("m.onnx\", graph.initializer[0] \"w\""), std::string::npos);
}

TEST(OnnxExternalData, AFolderWhoseNameBeginsTheSameIsOutside) {
  TemporaryFolder folder;
  folder.write("models-secret/w.bin", floats(4));
  std::string path = folder.write("models/m.onnx", model(4, {{"location", "w.bin"}}));
  fs::create_symlink("../models-secret/w.bin", folder.path() / "models/w.bin");
  EXPECT_NE(error_of_file(path).find("through a symbolic link"), std::string::npos);
}

TEST(OnnxExternalData, LinksOfADownloadCacheAreFollowed) {
  TemporaryFolder folder;  // the model and its data are links to files in one folder
  folder.write("blobs/1", model(4, {{"location", "w.bin"}}));
  folder.write("blobs/2", floats(4));
  fs::create_directories(folder.path() / "snapshot");
  fs::create_symlink("../blobs/1", folder.path() / "snapshot/m.onnx");
  fs::create_symlink("../blobs/2", folder.path() / "snapshot/w.bin");
  EXPECT_EQ(error_of_file(folder.file("snapshot/m.onnx")), "no error");
}

TEST(OnnxExternalData, IsCheckedAgainstTheFile) {
  TemporaryFolder folder;
  folder.write("w.bin", floats(4));
  auto error = [&](int64_t count, std::vector<std::pair<std::string, std::string>> entries, int data_type = 1) {
    entries.emplace_back("location", "w.bin");
    return error_of_file(folder.write("m.onnx", model(count, entries, data_type)));
  };
  EXPECT_EQ(error(4, {{"offset", "0"}, {"length", "16"}}), "no error");
  EXPECT_NE(error(5, {}).find("needs 20 bytes at 0 of the external file \"w.bin\", which has 16"), std::string::npos);
  EXPECT_NE(error(4, {{"offset", "1"}}).find("needs 16 bytes at 1"), std::string::npos);
  EXPECT_NE(error(4, {{"offset", "18446744073709551615"}}).find("which has 16"), std::string::npos);
  EXPECT_NE(error(4, {{"length", "15"}}).find("said to be 15 bytes long"), std::string::npos);
  for (const char* bad : {"-1", "", "0x10", "1.5", "99999999999999999999", " 1"})
    EXPECT_NE(error(4, {{"offset", bad}}).find("not a number of bytes"), std::string::npos) << bad;
  EXPECT_NE(error(4, {}, 8).find("strings cannot be external"), std::string::npos);
  std::string elsewhere = folder.write("m.onnx", model(4, {{"location", "missing.bin"}}));
  EXPECT_EQ(code_of([&] { parse_model_file(elsewhere); }), ErrorCode::not_found);
  std::string bytes = model(4, {{"location", "w.bin"}});
  EXPECT_NE(error_of([&] { parse_model_bytes(bytes_of(bytes), nullptr, {}); }).find("no folder was given"), std::string::npos);
  EXPECT_EQ(error_of([&] { parse_model_bytes(bytes_of(bytes), nullptr, folder.path()); }), "no error");
}

TEST(OnnxExternalData, AChecksumIsThatOfTheWholeFile) {
  TemporaryFolder folder;
  folder.write("w.bin", "abc" + std::string(1, '\0'));
  auto with = [&](const std::string& checksum) {
    return folder.write("m.onnx", model(1, {{"location", "w.bin"}, {"checksum", checksum}}));
  };
  // This is the result of hashlib.sha1(b"abc\0").
  EXPECT_NO_THROW(parse_model_file(with("686483805ac47ca14e03514f7481a7973b401762")));
  EXPECT_NO_THROW(parse_model_file(with("686483805AC47CA14E03514F7481A7973B401762")));
  std::string error = error_of_file(with("a9993e364706816aba3e25717850c26c9cd0d89d"));
  for (const char* word : {"\"w\"", "w.bin", "686483805ac47ca14e03514f7481a7973b401762", "a9993e364706816aba3e25717850c26c9cd0d89d"})
    EXPECT_NE(error.find(word), std::string::npos) << error;
  EXPECT_NO_THROW(parse_model_file(with("crc32:12345678")));
}

TEST(OnnxExternalData, CopiesOfOneFileHaveALimit) {
  TemporaryFolder folder;
  folder.write("w.bin", std::string(4097, 'x'));
  std::string graph = message([](Writer& g) {
    for (int i = 0; i < 100; ++i)
      g.add_message(5, tensor_message({1024}, 1, [](Writer& t) {
                      t.add_message(13, entry("location", "w.bin"));
                      t.add_message(13, entry("offset", "1"));
                      t.add_int32(14, 1);
                    }));
  });
  std::string path = folder.write("m.onnx", model_message(graph));
  EXPECT_EQ(code_of([&] { parse_model_file(path); }), ErrorCode::resource_exhausted);
}

TEST(OnnxModelFile, ThatCannotBeReadIsAnError) {
  TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { parse_model_file(folder.file("none.onnx")); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { parse_model_file(folder.path().string()); }), ErrorCode::io_error);
  EXPECT_EQ(code_of([&] { parse_model_file("/dev/null"); }), ErrorCode::io_error);
  EXPECT_EQ(code_of([&] { parse_model_file(folder.write("empty.onnx", "")); }), ErrorCode::invalid_model);
}

}  // namespace
}  // namespace treadle::onnx::test
