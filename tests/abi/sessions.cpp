// Models of files in C++: sessions MODEL WEIGHTS INPUT OUTPUT ... runs each model on the first 2 and then all 3 items
// of INPUT (float32, the shape of the model's input) from four threads at once, and writes what they agree on.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "clgraft.h"

using Floats = std::vector<float>;

static Floats run(clg_session session, const clg_port &port, Floats &items, uint64_t batch, std::string &error) {
    clg_tensor x = {}, y = {};
    x.size = y.size = sizeof x;
    x.dtype = CLG_FLOAT32;
    x.ndim = port.any ? 4 : port.ndim;
    for (uint32_t axis = 1; axis < x.ndim; axis++) x.shape[axis] = port.usual[axis];
    if (port.any) x.shape[1] = 3, x.shape[2] = x.shape[3] = 8;
    x.shape[0] = batch;
    x.data = items.data();
    x.bytes = items.size() / 3 * batch * sizeof(float);
    if (clg_session_shapes(session, &x, 1, &y, 1)) return error = clg_last_error(), Floats();
    Floats found(y.bytes / sizeof(float) + 1, 7.0f);
    y.data = found.data();
    uint64_t bytes = y.bytes, shape = y.shape[0];
    y.bytes = bytes - 1;
    if (clg_session_run(session, &x, 1, &y, 1) != CLG_BUFFER_TOO_SMALL || y.bytes != bytes || found[0] != 7)
        return error = "expected too little room", Floats();
    if (clg_session_run(session, &x, 1, &y, 1)) return error = clg_last_error(), Floats();
    if (y.shape[0] != batch || shape != batch || y.dtype != CLG_FLOAT32 || found.back() != 7)
        return error = "a wrong shape or too many elements", Floats();
    found.pop_back();
    return found;
}

int main(int argc, char **argv) {
    for (int i = 1; i + 3 < argc; i += 4) {
        clg_session session;
        clg_port port = {};
        port.size = sizeof port;
        if (clg_session_create(argv[i], argv[i + 1], nullptr, &session) || clg_session_input(session, 0, &port)) {
            std::printf("%s: %s\n", argv[i], clg_last_error());
            return 1;
        }
        std::ifstream file(argv[i + 2], std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        Floats items(bytes.size() / sizeof(float));
        std::memcpy(items.data(), bytes.data(), bytes.size());
        std::vector<Floats> found(8);
        std::vector<std::string> errors(4);
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++)
            threads.emplace_back([&, t] {
                for (int n = 0; n < 4; n++) {
                    Floats &last = found[2 * t + n % 2];
                    Floats now = run(session, port, items, 2 + n % 2, errors[t]);
                    if (!last.empty() && now != last) errors[t] = "two runs differ";
                    last = now;
                }
            });
        for (auto &thread : threads) thread.join();
        std::ofstream output(argv[i + 3], std::ios::binary);
        for (int n = 0; n < 2; n++)
            output.write(reinterpret_cast<char *>(found[n].data()), std::streamsize(found[n].size() * sizeof(float)));
        for (int t = 0; t < 4; t++)
            if (!errors[t].empty() || found[2 * t] != found[0] || found[2 * t + 1] != found[1]) {
                std::printf("thread %d of %s: %s\n", t, argv[i], errors[t].c_str());
                return 1;
            }
        if (clg_session_destroy(session) || clg_session_destroy(session) != CLG_INVALID_HANDLE) return 1;
        std::printf("%s: input %s, 4 threads agree\n", argv[i], port.any ? "of any rank" : "of a known rank");
    }
    return 0;
}
