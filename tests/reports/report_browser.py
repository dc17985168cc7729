"""A headless Chromium for the tests of the page."""

import base64
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
WAIT_S = 900


def require_browser() -> None:
    """Skip what needs a browser where there is none."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on PATH (Debian: chromium, chromium-driver)")


class Browser:
    """A browser that shows one report."""

    def __init__(self, profile: Path) -> None:
        options = Options()
        options.binary_location = CHROMIUM or ""
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        if os.getuid() == 0:
            flags.append("--no-sandbox")
        for flag in [*flags, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.add_experimental_option("browserStartupTimeout", 1000 * WAIT_S)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_script_timeout(WAIT_S)
        self.driver.set_page_load_timeout(WAIT_S)

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    def open(self, file: Path) -> None:
        """Open a report anew."""
        self.driver.get("about:blank")
        self.driver.get(file.as_uri())
        self.ready()

    def go(self, page: str) -> None:
        """Open a page of the report."""
        self.run("location.hash = arguments[0]", page)
        self.ready()

    def ready(self) -> None:
        """Wait until the page of the address is drawn."""
        self.wait(
            "const page = document.querySelector('.page.open');"
            "const name = decodeURIComponent(location.hash.slice(1)) || 'overview';"
            "return page && page.id === name && 'ready' in page.dataset"
        )

    def wait(self, script: str, *arguments: Any) -> None:
        """Wait until a script returns something true."""
        WebDriverWait(self.driver, WAIT_S, 0.02).until(lambda _: self.run(script, *arguments))

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *arguments)

    def width(self, pixels: int) -> None:
        """Make the window this wide."""
        metrics = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Prefer light or dark colours, as an operating system does."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self) -> bytes:
        """Return what the window shows, as PNG."""
        answer = self.driver.execute_cdp_cmd("Page.captureScreenshot", {})
        return base64.b64decode(answer["data"])

    def type(self, *keys: str) -> None:
        """Type keys where the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def point(self, selector: str) -> None:
        """Move the pointer onto an element."""
        (element,) = self.run("return [document.querySelector(arguments[0])]", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def console(self) -> list[str]:
        """Return what the console has said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
