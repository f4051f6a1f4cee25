// A C++ caller: four threads share one context and its plans, and all must get the same bits.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "clgraft.h"

int main() {
    clg_context context;
    clg_plan plan;
    const char *problem = "conv forward n1 ic8 ih16 iw16 oc8 kh3 kw3 ph1 pw1";
    if (clg_context_create(nullptr, &context) || clg_plan_create(context, problem, &plan)) {
        std::fprintf(stderr, "%s\n", clg_last_error());
        return 1;
    }
    std::vector<float> x(8 * 256), w(8 * 8 * 9);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(i * 7919 % 1000) / 1000 - 0.5f;
    for (size_t i = 0; i < w.size(); i++) w[i] = float(i * 104729 % 1000) / 1000 - 0.5f;
    std::vector<std::vector<float>> results(4, std::vector<float>(8 * 256));
    std::vector<int> failed(4);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int repeat = 0; repeat < 50; repeat++) {
                auto &y = results[t];
                std::memset(y.data(), 0xff, y.size() * 4);
                clg_buffer buffers[3] = {};
                float *data[3] = {x.data(), w.data(), y.data()};
                size_t bytes[3] = {x.size() * 4, w.size() * 4, y.size() * 4};
                for (int i = 0; i < 3; i++) {
                    buffers[i].size = sizeof(clg_buffer);
                    buffers[i].kind = CLG_HOST;
                    buffers[i].dtype = CLG_FLOAT32;
                    buffers[i].handle = data[i];
                    buffers[i].bytes = bytes[i];
                }
                if (clg_plan_run(plan, buffers, 3, nullptr, 0)) failed[t]++;
                clg_plan another;
                if (clg_plan_create(context, problem, &another) || clg_plan_destroy(another)) failed[t]++;
            }
        });
    for (auto &thread : threads) thread.join();
    for (int t = 0; t < 4; t++) {
        if (failed[t] || std::memcmp(results[t].data(), results[0].data(), results[0].size() * 4)) {
            std::printf("thread %d differs or failed %d times: %s\n", t, failed[t], clg_last_error());
            return 1;
        }
    }
    std::printf("4 threads agree\n");
    return clg_context_destroy(context);
}
