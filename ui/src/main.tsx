// Starts the dashboard: the frame, the screen that the address names, and what lies above both.

import { Component, render, type ComponentChildren, type JSX } from "preact";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/frame.css";
import "./styles/screens.css";
import { follow } from "./live";
import { Failure } from "./parts/basics";
import { Confirm } from "./parts/dialog";
import { Frame } from "./parts/frame";
import { Finder, Help, News, Toasts, Unlock } from "./parts/above";
import { screen } from "./route";
import { Calls } from "./screens/calls";
import { Errors } from "./screens/errors";
import { Jobs } from "./screens/jobs";
import { Letters } from "./screens/letters";
import { Limits } from "./screens/limits";
import { Overview } from "./screens/overview";
import { Policy } from "./screens/policy";
import { Schedules } from "./screens/schedules";
import { Upstreams } from "./screens/upstreams";

const PAGES: Record<string, () => JSX.Element> = {
  overview: Overview,
  upstreams: Upstreams,
  calls: Calls,
  jobs: Jobs,
  "dead-letters": Letters,
  schedules: Schedules,
  limits: Limits,
  errors: Errors,
  policy: Policy,
};

/** A screen that cannot be drawn takes no other screen with it. */
class Fence extends Component<{ children: ComponentChildren }, { error?: Error }> {
  static override getDerivedStateFromError(error: Error) {
    return { error };
  }
  override render() {
    return this.state.error ? <Failure error={this.state.error} again={() => this.setState({})} /> : this.props.children;
  }
}

function App(): JSX.Element {
  const Page = PAGES[screen.value] ?? Overview;
  return (
    <>
      <Frame>
        <Fence key={screen.value}>
          <Page />
        </Fence>
      </Frame>
      <Confirm />
      <Finder />
      <Help />
      <News />
      <Unlock />
      <Toasts />
    </>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
void follow();
