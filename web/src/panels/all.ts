// The panels, one file each; each registers itself. Their places in the row of tabs are their `order`.
import "./guess-map";
import "./heads";
import "./walk";
import "./next-word";
import "./parts";
import "./mask";
import "./cache";
import "./alignment";
import "./experts";
import "./shift";
import "./cost";
import "./compare";
import "./proof";
import "./training";
