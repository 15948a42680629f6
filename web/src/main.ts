/** The page's beginning: the shell, and the panels that register themselves. Read next: app.ts, then panel.ts. */
import "./look.css";
import "./draw/number";
import "./draw/matrix";
import "./app";
import "./panels/all";
