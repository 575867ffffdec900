/*
 * Graphs: what is asked of a stream while it is captured is noted, with its arguments as they
 * are then, and done when the graph is launched. Pointers stay pointers: what they point to is
 * read at the launch.
 *
 * What the runtime refuses in a capture (taking and freeing memory, waiting, copies of memory
 * that is not pinned) spoils it here too: the call is an error, and so is the end of the
 * capture. So is work for another stream, the default one above all. There it would be done at
 * once, outside the graph, which nobody wants who captures.
 */
#include <vector>

#include <stdlib.h>

#include "../port.cuh"
#include "block_int.h"

struct graph_node {
    bool is_launch;
    emu_launch launch; /* owns its argument */
    copy_request copy;
};

struct emu_graph {
    std::vector<graph_node> nodes;
};

static thread_local struct {
    emu_stream *stream; /* NULL: nothing is captured */
    emu_graph *graph;
    bool is_spoilt;
} capture;

static unsigned n_refused;

void emu_refuse_graphs(unsigned n)
{
    n_refused = n;
}

/* ------------------------------------------------------------------ noting */

static void spoil(const char *what)
{
    error_set("%s is not permitted while a stream is captured", what);
    capture.is_spoilt = true;
}

bool capture_forbids(const char *what)
{
    if (!capture.stream)
        return false;
    spoil(what);
    return true;
}

/* Noting goes on after a mistake, as calls of the runtime go on to fail. */
static bool note(emu_stream *s, const char *what, const graph_node &node)
{
    if (!capture.stream)
        return false;
    if (s != capture.stream)
        spoil(what);
    else if (!capture.is_spoilt)
        capture.graph->nodes.push_back(node);
    return true;
}

bool capture_takes_launch(emu_stream *s, const emu_launch &launch)
{
    if (!capture.stream)
        return false;
    graph_node node = {true, launch, {}};
    void *argument = nullptr;
    if (!capture.is_spoilt && s == capture.stream) {
        if (posix_memalign(&argument, 64, launch.argument_bytes) != 0)
            emu_fail({}, "no memory for the arguments of kernel %s", launch.kernel);
        memcpy(argument, launch.argument, launch.argument_bytes);
    }
    node.launch.argument = argument;
    return note(s, "a launch on another stream", node);
}

bool capture_takes_copy(emu_stream *s, const copy_request &copy)
{
    if (!capture.stream)
        return false;
    const bool is_from_host = copy.kind == copy_request::TO_DEVICE;
    const void *host = is_from_host ? copy.from : copy.to;
    if (copy.kind != copy_request::ON_DEVICE && !is_pinned_memory(host, copy.bytes)) {
        spoil("a copy of memory that is not pinned");
        return true;
    }
    return note(s, "a copy on another stream", {false, {}, copy});
}

/* ------------------------------------------------------------------ the host's side */

bool capture_begin(stream_t s)
{
    if (!s) {
        error_set("the default stream cannot be captured");
        return false;
    }
    if (capture_forbids("another capture"))
        return false;
    capture = {s, new emu_graph, false};
    return true;
}

graph_t capture_end(stream_t s)
{
    if (!s || s != capture.stream) {
        error_set("the end of a capture of a stream that is not captured");
        return nullptr;
    }
    emu_graph *graph = capture.graph;
    const bool is_spoilt = capture.is_spoilt;
    capture = {};
    if (!is_spoilt && n_refused == 0)
        return graph;
    error_set(is_spoilt ? "the capture was spoilt" : "no memory for a graph");
    n_refused -= !is_spoilt;
    graph_free(graph);
    return nullptr;
}

bool graph_launch(graph_t g, stream_t s)
{
    if (capture_forbids("graph_launch()"))
        return false;
    count_graph_launch();
    for (const graph_node &node : g->nodes)
        if (node.is_launch)
            launch_run(node.launch);
        else
            copy_run(s, node.copy);
    return true;
}

void graph_free(graph_t g)
{
    if (!g)
        return;
    for (const graph_node &node : g->nodes)
        if (node.is_launch)
            free(const_cast<void *>(node.launch.argument));
    delete g;
}
