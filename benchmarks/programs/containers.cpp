// Standard containers at work: a map of strings, vectors that grow, a queue. Prints a checksum.
#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

int main() {
  unsigned long sum = 0;
  for (int round = 0; round < 3; round++) {
    std::map<std::string, int> words;
    std::unordered_map<unsigned, std::vector<int>> groups;
    std::deque<int> queue;
    unsigned state = 1;
    for (int i = 0; i < 250000; i++) {
      state = state * 1664525u + 1013904223u;
      words["key number " + std::to_string(state >> 14)] += i;
      groups[state >> 20].push_back(i);
      queue.push_back(i);
      if (queue.size() > 1000) queue.pop_front();
    }
    for (const auto& [word, count] : words) sum += word.size() * static_cast<unsigned>(count);
    for (const auto& [group, members] : groups) sum += group * members.size();
  }
  std::printf("%lu\n", sum);
}
