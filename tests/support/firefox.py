"""Firefox without a window, driven by its own protocol, WebDriver BiDi: messages in JSON by a WebSocket."""

import asyncio
import json
import re
import shutil
import tempfile
from contextlib import asynccontextmanager, closing

FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")
BEGUN = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
WATCHED = ("log.entryAdded", "network.beforeRequestSent")
PATIENCE = 60  # seconds until it says where it listens


class Tab:
    """One tab: what its console complains of and what other hosts are asked, in ``told``."""

    def __init__(self, socket):
        self.socket, self.number, self.told = socket, 0, []

    async def ask(self, method, **params):
        """The result of a command; what happens until it comes is noted."""
        self.number += 1
        await self.socket.write_message(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(await self.socket.read_message())
            if message.get("id") == self.number:
                assert message["type"] == "success", message
                return message["result"]
            self.note(message["method"], message["params"])

    def note(self, event, params):
        """An event, if something is wrong with it."""
        if event == "log.entryAdded" and params["level"] == "error":
            self.told.append(params["text"])
        if event == "network.beforeRequestSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:")
        ):
            self.told.append(f"asks for {params['request']['url']}")

    async def open(self, page):
        """Go to a file, until it has been loaded."""
        await self.ask("browsingContext.navigate", context=self.context, url=page.as_uri(), wait="complete")

    async def evaluate(self, code):
        """What an expression, or the promise that it is, comes to, by way of JSON."""
        expression = f"(async () => JSON.stringify(await ({code})))()"
        target = {"context": self.context}
        found = await self.ask("script.evaluate", expression=expression, target=target, awaitPromise=True)
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])


@asynccontextmanager
async def firefox():
    """A tab of a Firefox with a profile of its own, which is closed in the end."""
    from tornado.websocket import websocket_connect  # comes with Jupyter

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [FIREFOX, "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(PATIENCE):
                while not (begun := BEGUN.search((await process.stderr.readline()).decode())):
                    assert process.returncode is None
            reading = asyncio.ensure_future(process.stderr.read())  # so that it never waits to be read
            with closing(await websocket_connect(f"{begun[1]}/session", max_message_size=1 << 26)) as socket:
                tab = Tab(socket)
                await tab.ask("session.new", capabilities={})
                await tab.ask("session.subscribe", events=[*WATCHED])
                tab.context = (await tab.ask("browsingContext.getTree"))["contexts"][0]["context"]
                yield tab
                await tab.ask("browser.close")
            await reading
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
