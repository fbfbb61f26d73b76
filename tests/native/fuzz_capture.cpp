// Damaged chunk files: a seeded storm of mutations, under the sanitizers. The reader must not crash,
// must not hand out a payload that differs from what was written, and must end.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "capture/chunk_reader.h"
#include "capture/chunk_writer.h"

using namespace memlens::capture;

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const int rounds = argc > 2 ? atoi(argv[2]) : 1000;
  const std::string original = folder + "/fuzz-original.mlc", mutated = folder + "/fuzz-mutated.mlc";
  std::mt19937_64 random(20260101);
  std::set<std::vector<unsigned char>> written;
  unlink(original.c_str());
  {
    ChunkWriter writer(original, ML_WRITER_RECORDER, 1);
    for (int i = 0; i < 12; ++i) {
      std::vector<unsigned char> payload(random() % 3000);
      for (auto& byte : payload) byte = static_cast<unsigned char>(i % 2 ? random() : i);
      written.insert(payload);
      ChunkInfo info;
      info.kind = static_cast<uint16_t>(16 + i % 3);
      info.record_count = 1;
      if (writer.append(info, payload) != 0) return 1;
    }
  }
  std::ifstream in(original, std::ios::binary);
  const std::vector<char> content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  long read = 0, refused = 0, wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<char> bytes = content;
    for (int edits = 1 + static_cast<int>(random() % 8); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.resize(at + 1); break;
        case 2: bytes.insert(bytes.begin() + static_cast<long>(at), 1 + random() % 40, static_cast<char>(random())); break;
        default: bytes.erase(bytes.begin() + static_cast<long>(at),
                             bytes.begin() + static_cast<long>(std::min(bytes.size(), at + 1 + random() % 100)));
      }
      if (bytes.empty()) bytes.push_back(0);
    }
    std::ofstream(mutated, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<long>(bytes.size()));
    try {
      ChunkReader reader(mutated);
      reader.refresh();
      for (size_t i = 0; i < reader.chunks().size(); ++i) {
        const auto payload = reader.payload(reader.chunks()[i]);
        if (payload) ++read;
        if (payload && written.count(*payload) == 0) ++wrong;
      }
    } catch (const FormatError&) {
      ++refused;
    }
  }
  printf("%d files, %ld payloads read, %ld files refused\n", rounds, read, refused);
  printf("%d passed, %ld failed\n", rounds, wrong);
  return wrong == 0 && read > 0 ? 0 : 1;
}
